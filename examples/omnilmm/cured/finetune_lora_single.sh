#!/bin/bash
# LoRA fine-tuning on one card, without DeepSpeed: weights in float32, computed in float16 by autocast.

python finetune.py \
    --model_name_or_path model \
    --data_path data/signs.json \
    --remove_unused_columns false \
    --label_names "labels" \
    --bf16 false \
    --fp16 true \
    --torch_dtype float32 \
    --attn_implementation sdpa \
    --float32_modules vpm \
    --use_lora true \
    --tune_vision true \
    --lora_r 8 \
    --lora_alpha 16 \
    --lora_target_modules "llm\..*layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|o_proj)" \
    --lora_modules_to_save embed_tokens resampler \
    --model_max_length 256 \
    --max_steps 8 \
    --output_dir output/output_single_cured \
    --per_device_train_batch_size 4 \
    --save_strategy "no" \
    --optim adamw_torch \
    --learning_rate 1e-4 \
    --weight_decay 0.1 \
    --adam_beta2 0.95 \
    --lr_scheduler_type "cosine" \
    --logging_steps 1 \
    --report_to none \
    --disable_tqdm true
