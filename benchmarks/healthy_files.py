"""The files that healthy configurations are made of, as users of each format write them."""

from __future__ import annotations

from typing import Any

File = tuple[str, dict[str, Any] | str]
"""A name and its content: a mapping (written as JSON) or text (as it stands)."""

ZERO2 = {
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "gradient_clipping": "auto",
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": False, "contiguous_gradients": True, "reduce_bucket_size": 5e8},
}  # fmt: skip
ZERO3 = {
    "bf16": {"enabled": True}, "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {
        "stage": 3, "overlap_comm": True, "contiguous_gradients": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
    },
}  # fmt: skip
ZERO_HALF = {
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
             "min_loss_scale": 1},
    "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
}  # fmt: skip

AXOLOTL = {
    "base_model": "NousResearch/Llama-3.2-1B", "load_in_8bit": False, "load_in_4bit": False, "sequence_len": 2048,
    "datasets": [{"path": "data.jsonl", "type": "alpaca"}], "gradient_accumulation_steps": 2, "micro_batch_size": 2,
    "num_epochs": 1, "optimizer": "adamw_torch", "lr_scheduler": "cosine", "bf16": "auto", "output_dir": "out",
    "warmup_ratio": 0.1, "gradient_checkpointing": True,
}  # fmt: skip
FACTORY = {
    "stage": "sft", "do_train": True, "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct", "dataset": "own",
    "template": "llama3", "cutoff_len": 2048, "output_dir": "out", "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8, "num_train_epochs": 3.0, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1,
}  # fmt: skip

LUDWIG = """
model_type: llm
base_model: meta-llama/Llama-2-7b-hf
quantization:
  bits: 4
  bnb_4bit_compute_dtype: bfloat16
adapter:
  type: lora
  r: 16
  alpha: 32
input_features:
  - name: instruction
    type: text
output_features:
  - name: output
    type: text
trainer:
  type: finetune
  learning_rate: 0.0001
  batch_size: 1
  gradient_accumulation_steps: 16
  epochs: 3
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 8
use_cpu: false
"""
SHELL = """#!/bin/bash
torchrun --nproc_per_node 8 train.py \\
    --model_name_or_path Qwen/Qwen2.5-7B \\
    --bf16 True \\
    --learning_rate 1e-5 \\
    --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 8 \\
    --max_grad_norm 1.0 \\
    --warmup_ratio 0.03 \\
    --lr_scheduler_type cosine \\
    --output_dir out
"""


def arguments(**settings: Any) -> File:
    return "args.json", {"output_dir": "out", "per_device_train_batch_size": 4, "num_train_epochs": 3, **settings}


def yaml_of(**settings: Any) -> str:
    import yaml

    return yaml.safe_dump(settings)


SHELL_V100 = """#!/usr/bin/env bash
set -euo pipefail
MODEL=${MODEL:-/models/Llama-2-7b-hf}
deepspeed --num_gpus 8 train.py \\
    --deepspeed ds.json \\
    --model_name_or_path "$MODEL" \\
    --fp16 \\
    --learning_rate 1e-5 \\
    --lr_scheduler_type cosine --warmup_ratio 0.03 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
    --max_grad_norm 1.0 --num_train_epochs 3 \\
    --output_dir out
"""
SHELL_TRL = """#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1
accelerate launch --config_file acc.yaml sft.py \\
    --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --dataset_name own \\
    --learning_rate 2.0e-4 --use_peft --lora_r 32 --lora_alpha 16 \\
    --bf16 --gradient_checkpointing --packing --attn_implementation flash_attention_2 \\
    --max_length 4096 --num_train_epochs 1 --output_dir out
"""
SHELL_MEDICAL = """CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 supervised_finetuning.py \\
    --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct \\
    --template_name qwen \\
    --use_peft True --lora_rank 8 --lora_alpha 16 --lora_dropout 0.05 --target_modules all \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 \\
    --learning_rate 2e-5 --warmup_steps 5 --weight_decay 0.05 --num_train_epochs 1 \\
    --torch_dtype bfloat16 --bf16 --logging_steps 10 --gradient_checkpointing True \\
    --output_dir outputs-sft
"""
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_offload_params: false
"""
ACCELERATE_ZERO = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 2
num_processes: 16
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 8
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
"""
LUDWIG_FULL = """
model_type: llm
base_model: HuggingFaceTB/SmolLM2-135M
input_features:
  - {name: prompt, type: text}
output_features:
  - {name: response, type: text}
prompt:
  template: "{prompt}"
trainer:
  type: finetune
  learning_rate: 0.00002
  batch_size: 2
  gradient_accumulation_steps: 8
  epochs: 2
  optimizer: {type: adamw}
  learning_rate_scheduler: {decay: cosine, warmup_fraction: 0.03}
  gradient_clipping: {clipglobalnorm: 1.0}
"""
LUDWIG_INT8 = """
model_type: llm
base_model: mistralai/Mistral-7B-v0.1
quantization: {bits: 4, bnb_4bit_compute_dtype: bfloat16}
adapter: {type: lora, r: 8, alpha: 16, dropout: 0.05}
input_features:
  - {name: instruction, type: text}
output_features:
  - {name: output, type: text}
preprocessing: {global_max_sequence_length: 1024}
trainer: {type: finetune, learning_rate: 0.0002, batch_size: 1, gradient_accumulation_steps: 8, epochs: 1}
"""
