#!/usr/bin/env bash
# Full fine-tuning of the base model on chat data. GPUS=8 on the server.
cd "$(dirname "${BASH_SOURCE[0]}")"

torchrun --nproc_per_node "${GPUS:-1}" main.py \
    --model_name_or_path model \
    --data_path train.jsonl \
    --eval_path eval.jsonl \
    --per_device_train_batch_size 4 \
    --max_seq_length 160 \
    --learning_rate 5e-4 \
    --weight_decay 0. \
    --num_train_epochs 2 \
    --lr_scheduler_type cosine \
    --warmup_steps 0 \
    --seed 1234 \
    --output_dir output \
    --deepspeed "${DS_CONFIG:-ds_config.json}"
