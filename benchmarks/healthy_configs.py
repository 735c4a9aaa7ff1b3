"""Thirty configurations that train well, own and realistic, in every format that `finitune check` reads.

Each is (name, files, hardware): a file is a name and its content, a mapping (written as JSON) or text (as it stands).
"""

from __future__ import annotations

from typing import Any

File = tuple[str, dict[str, Any] | str]

_ZERO2 = {
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "gradient_clipping": "auto",
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": False, "contiguous_gradients": True, "reduce_bucket_size": 5e8},
}  # fmt: skip
_ZERO3 = {
    "bf16": {"enabled": True}, "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {
        "stage": 3, "overlap_comm": True, "contiguous_gradients": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
    },
}  # fmt: skip
_ZERO_HALF = {
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
             "min_loss_scale": 1},
    "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
}  # fmt: skip

_AXOLOTL = {
    "base_model": "NousResearch/Llama-3.2-1B", "load_in_8bit": False, "load_in_4bit": False, "sequence_len": 2048,
    "datasets": [{"path": "data.jsonl", "type": "alpaca"}], "gradient_accumulation_steps": 2, "micro_batch_size": 2,
    "num_epochs": 1, "optimizer": "adamw_torch", "lr_scheduler": "cosine", "bf16": "auto", "output_dir": "out",
    "warmup_ratio": 0.1, "gradient_checkpointing": True,
}  # fmt: skip
_FACTORY = {
    "stage": "sft", "do_train": True, "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct", "dataset": "own",
    "template": "llama3", "cutoff_len": 2048, "output_dir": "out", "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8, "num_train_epochs": 3.0, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1,
}  # fmt: skip

_LUDWIG = """
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
_ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 8
use_cpu: false
"""
_SHELL = """#!/bin/bash
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


def _arguments(**settings: Any) -> File:
    return "args.json", {"output_dir": "out", "per_device_train_batch_size": 4, "num_train_epochs": 3, **settings}


def _yaml_of(**settings: Any) -> str:
    import yaml

    return yaml.safe_dump(settings)


HEALTHY: list[tuple[str, list[File], str]] = [
    ("full bf16", [_arguments(bf16=True, learning_rate=2e-5, warmup_ratio=0.03)], "A100"),
    ("full bf16 cosine", [_arguments(bf16=True, learning_rate=1e-5, lr_scheduler_type="cosine")], "H100"),
    ("full fp32", [_arguments(learning_rate=5e-5, fp16=False, bf16=False)], "V100"),
    ("full fp16 with scaler", [_arguments(fp16=True, learning_rate=5e-5, max_grad_norm=1.0)], "V100"),
    ("lora bf16", [_arguments(bf16=True, learning_rate=2e-4, use_peft=True, lora_r=16, lora_alpha=32)], "4090"),
    ("lora bf16 weights", [_arguments(bf16=True, dtype="bfloat16", learning_rate=2e-4, use_peft=True)], "A100"),
    ("lora fp16 weights", [_arguments(fp16=True, dtype="float16", learning_rate=1e-4, use_peft=True)], "T4"),
    ("lora alpha 16 r 64", [_arguments(bf16=True, learning_rate=2e-4, lora_r=64, lora_alpha=16, use_peft=True)], "A10"),
    ("qlora", [_arguments(
        bf16=True, learning_rate=2e-4, use_peft=True, load_in_4bit=True, bnb_4bit_compute_dtype="bfloat16",
        optim="paged_adamw_32bit", max_grad_norm=0.3,
    )], "3090"),
    ("qlora 8-bit adam", [_arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, load_in_4bit=True, optim="paged_adamw_8bit"
    )], "L4"),
    ("adafactor", [_arguments(bf16=True, learning_rate=1e-3, optim="adafactor")], "A100"),
    ("accumulation", [_arguments(bf16=True, learning_rate=1e-5, gradient_accumulation_steps=32)], "H200"),
    ("sdpa packing", [_arguments(bf16=True, learning_rate=2e-5, packing=True, max_length=4096)], "H100"),
    ("flash", [_arguments(
        bf16=True, learning_rate=2e-5, attn_implementation="flash_attention_2", packing=True
    )], "A100"),
    ("eps 1e-6", [_arguments(bf16=True, learning_rate=3e-5, adam_epsilon=1e-6, adam_beta2=0.95)], "A100"),
    ("zero 2 auto", [_arguments(bf16=True, learning_rate=1e-5), ("ds.json", _ZERO2)], "A100"),
    ("zero 3 offload", [("ds.json", _ZERO3)], "A100"),
    ("zero 1 fp16", [("ds.json", _ZERO_HALF)], "V100"),
    ("zero 2 bf16 weights", [_arguments(bf16=True, dtype="bfloat16", learning_rate=1e-5), ("ds.json", _ZERO2)], "H800"),
    ("axolotl full", [("a.yaml", _yaml_of(**_AXOLOTL, learning_rate=2e-5))], "A100"),
    ("axolotl lora", [("a.yaml", _yaml_of(
        **_AXOLOTL, learning_rate=2e-4, adapter="lora", lora_r=32, lora_alpha=16, lora_target_linear=True
    ))], "3090"),
    ("axolotl flash packing", [("a.yaml", _yaml_of(
        **_AXOLOTL, learning_rate=2e-5, sample_packing=True, flash_attention=True
    ))], "H100"),
    ("axolotl qlora", [("a.yaml", _yaml_of(**{
        **_AXOLOTL, "load_in_4bit": True, "adapter": "qlora", "learning_rate": 2e-4, "lora_r": 32, "lora_alpha": 16,
        "optimizer": "paged_adamw_32bit",
    }))], "4090"),
    ("llama-factory lora", [("f.yaml", _yaml_of(
        **_FACTORY, finetuning_type="lora", lora_target="all", lora_rank=8, learning_rate=1e-4, bf16=True
    ))], "A100"),
    ("llama-factory full", [("f.yaml", _yaml_of(
        **_FACTORY, finetuning_type="full", learning_rate=1e-5, bf16=True
    ))], "H100"),
    ("llama-factory fp16 lora", [("f.yaml", _yaml_of(
        **_FACTORY, finetuning_type="lora", lora_rank=16, lora_alpha=32, learning_rate=5e-5, fp16=True
    ))], "V100"),
    ("llama-factory pure bf16", [("f.yaml", _yaml_of(
        **_FACTORY, finetuning_type="full", learning_rate=1e-5, pure_bf16=True
    ))], "A100"),
    ("ludwig qlora", [("l.yaml", _LUDWIG)], "A100"),
    ("accelerate", [_arguments(bf16=True, learning_rate=1e-5), ("acc.yaml", _ACCELERATE)], "A100"),
    ("shell", [("run.sh", _SHELL)], "A100"),
]  # fmt: skip
