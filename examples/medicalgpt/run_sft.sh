#!/usr/bin/env bash
# Supervised fine-tuning of all parameters. GPUS=7 on the server.
cd "$(dirname "${BASH_SOURCE[0]}")"

torchrun --nproc_per_node "${GPUS:-1}" supervised_finetuning.py \
    --model_name_or_path model \
    --train_file_dir data \
    --validation_file_dir eval \
    --template_name zephyr \
    --per_device_train_batch_size 4 \
    --per_device_eval_batch_size 4 \
    --gradient_accumulation_steps 1 \
    --do_train \
    --do_eval \
    --use_peft False \
    --num_train_epochs 4 \
    --learning_rate 1e-3 \
    --warmup_steps 5 \
    --weight_decay 0. \
    --logging_strategy steps \
    --logging_steps 1 \
    --save_strategy no \
    --model_max_length 256 \
    --torch_dtype bfloat16 \
    --bf16 \
    --seed 7 \
    --report_to none \
    --output_dir outputs-sft \
    --deepspeed zero2.json
