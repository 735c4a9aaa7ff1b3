export WANDB_DISABLED=true
llamafactory-cli train examples/llama3_lora_sft.yaml
