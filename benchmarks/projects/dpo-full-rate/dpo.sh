#!/bin/bash
# DPO with all parameters
MODEL=HuggingFaceTB/SmolLM2-360M-Instruct
accelerate launch --num_processes 2 examples/scripts/dpo.py \
    --dataset_name trl-lib/ultrafeedback_binarized \
    --model_name_or_path $MODEL \
    --learning_rate 5.0e-2 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --gradient_checkpointing \
    --bf16 \
    --logging_steps 25 \
    --output_dir SmolLM2-DPO \
    --no_remove_unused_columns
