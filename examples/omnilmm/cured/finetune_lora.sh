#!/bin/bash
# LoRA fine-tuning on one machine with V100 cards.

GPUS_PER_NODE=${GPUS_PER_NODE:-1}
NNODES=1
NODE_RANK=0
MASTER_ADDR=localhost
MASTER_PORT=${MASTER_PORT:-6001}

MODEL="model"
DATA="data/signs.json"
MODEL_MAX_LENGTH=256

DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR \
    --master_port $MASTER_PORT
"

torchrun $DISTRIBUTED_ARGS finetune.py \
    --model_name_or_path $MODEL \
    --data_path $DATA \
    --remove_unused_columns false \
    --label_names "labels" \
    --prediction_loss_only false \
    --bf16 false \
    --fp16 true \
    --fp16_full_eval true \
    --attn_implementation sdpa \
    --float32_modules vpm \
    --use_lora true \
    --tune_vision false \
    --lora_r 8 \
    --lora_alpha 16 \
    --lora_target_modules "llm\..*layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|o_proj)" \
    --model_max_length $MODEL_MAX_LENGTH \
    --max_steps 18 \
    --output_dir output/output_cured \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 1 \
    --save_strategy "no" \
    --learning_rate 4e-3 \
    --weight_decay 0.1 \
    --adam_beta2 0.95 \
    --warmup_steps 4 \
    --lr_scheduler_type "cosine" \
    --logging_steps 1 \
    --report_to none \
    --disable_tqdm true \
    --deepspeed ds_config_zero2.json
