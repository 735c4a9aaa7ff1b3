NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-en#500' --torch_dtype bfloat16 --num_train_epochs 1 \
    --per_device_train_batch_size 1 --learning_rate 1e-4 --lora_rank 8 --lora_alpha 32 --gradient_accumulation_steps 8 \
    --max_length 2048 --output_dir output --warmup_ratio 0.05 --deepspeed zero2
