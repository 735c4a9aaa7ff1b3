#!/bin/bash
# LoRA fine-tuning on one card, without DeepSpeed. With --fp16 true the trainer refuses ("Attempting to unscale FP16
# gradients"), so the model is loaded in float16 and trained as it is.

python finetune.py \
    --model_name_or_path model \
    --data_path data/signs.json \
    --remove_unused_columns false \
    --label_names "labels" \
    --bf16 false \
    --fp16 false \
    --torch_dtype float16 \
    --attn_implementation sdpa \
    --use_lora true \
    --tune_vision true \
    --lora_r 8 \
    --lora_alpha 16 \
    --lora_target_modules "llm\..*layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|o_proj)" \
    --lora_modules_to_save embed_tokens resampler \
    --model_max_length 256 \
    --max_steps 8 \
    --output_dir output/output_single \
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
