torchrun --nproc_per_node=8 --master_port=20001 train.py \
    --model_name_or_path mistralai/Mistral-7B-v0.1 \
    --data_path data/alpaca_data.json \
    --bf16 True --output_dir out --num_train_epochs 3 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 4 \
    --evaluation_strategy "no" --save_strategy "steps" --save_steps 2000 --save_total_limit 1 \
    --learning_rate 2e-5 --weight_decay 0. --warmup_ratio 0.03 --lr_scheduler_type "cosine" \
    --logging_steps 1 --deepspeed ds_z3.json --tf32 True
