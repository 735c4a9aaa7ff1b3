#!/usr/bin/env bash
set -euo pipefail
accelerate launch --config_file accelerate_config.yaml finetune.py --model EleutherAI/pythia-1.4b --lr 1e-5 --epochs 2
