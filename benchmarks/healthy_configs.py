"""Configurations that train well, own and realistic, in every format that `finitune check` reads.

Each is (name, files, hardware): a file is a name and its content, a mapping (written as JSON) or text (as it stands).
Ten are odd but sound: settings that look wrong and have a reason.
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


_SHELL_V100 = """#!/usr/bin/env bash
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
_SHELL_TRL = """#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1
accelerate launch --config_file acc.yaml sft.py \\
    --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --dataset_name own \\
    --learning_rate 2.0e-4 --use_peft --lora_r 32 --lora_alpha 16 \\
    --bf16 --gradient_checkpointing --packing --attn_implementation flash_attention_2 \\
    --max_length 4096 --num_train_epochs 1 --output_dir out
"""
_SHELL_MEDICAL = """CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 supervised_finetuning.py \\
    --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct \\
    --template_name qwen \\
    --use_peft True --lora_rank 8 --lora_alpha 16 --lora_dropout 0.05 --target_modules all \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 \\
    --learning_rate 2e-5 --warmup_steps 5 --weight_decay 0.05 --num_train_epochs 1 \\
    --torch_dtype bfloat16 --bf16 --logging_steps 10 --gradient_checkpointing True \\
    --output_dir outputs-sft
"""
_FSDP = """
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
_ACCELERATE_ZERO = """
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
_LUDWIG_FULL = """
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
_LUDWIG_INT8 = """
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
    ("V100 fp16 lora alpha 2r", [_arguments(
        fp16=True, learning_rate=2e-4, use_peft=True, lora_r=16, lora_alpha=32, warmup_ratio=0.03, max_grad_norm=1.0
    )], "V100"),
    ("V100 fp16 zero 2", [("run.sh", _SHELL_V100), ("ds.json", _ZERO2)], "V100"),
    ("T4 qlora fp16 compute", [_arguments(
        fp16=True, learning_rate=2e-4, use_peft=True, load_in_4bit=True, bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype="float16", optim="paged_adamw_8bit", lora_r=16, lora_alpha=16, max_length=2048,
        model_name_or_path="unsloth/tinyllama-bnb-4bit",
    )], "T4"),
    ("2080 Ti fp16 classifier", [_arguments(
        fp16=True, learning_rate=3e-5, weight_decay=0.01, per_device_eval_batch_size=64, eval_strategy="epoch",
        model_name_or_path="bert-base-uncased", max_seq_length=128, warmup_ratio=0.1,
    )], "2080 Ti"),
    ("qlora nf4 double quant", [_arguments(
        bf16=True, learning_rate=2e-4, use_peft=True, lora_r=64, lora_alpha=16, lora_dropout=0.1, load_in_4bit=True,
        bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16", use_bnb_nested_quant=True,
        optim="paged_adamw_32bit", max_grad_norm=0.3, group_by_length=True, lr_scheduler_type="constant",
    )], "A100"),
    ("zero 3 fp32 master", [_arguments(
        bf16=True, dtype="bfloat16", learning_rate=5e-6, lr_scheduler_type="cosine", warmup_ratio=0.03,
        gradient_checkpointing=True,
    ), ("ds.json", {**_ZERO2, "zero_optimization": {"stage": 3, "overlap_comm": True}})], "H100"),
    ("cosine without warm-up, small rate", [_arguments(
        bf16=True, learning_rate=2e-6, lr_scheduler_type="cosine", warmup_steps=0, weight_decay=0.0
    )], "A100"),
    ("packing with flash", [_arguments(
        bf16=True, learning_rate=1e-5, packing=True, max_length=8192, attn_implementation="flash_attention_2",
        gradient_accumulation_steps=2,
    )], "H100"),
    ("packing with flash 3", [_arguments(
        bf16=True, learning_rate=1e-5, packing=True, max_length=16384,
        model_init_kwargs={"attn_implementation": "kernels-community/flash-attn3", "dtype": "float32"},
    )], "H200"),
    ("left padding, eager, bf16", [_arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, padding_side="left", attn_implementation="eager"
    )], "A100"),
    ("left padding for generation, fp16 sdpa", [_arguments(
        fp16=True, learning_rate=1e-4, use_peft=True, padding_side="left", per_device_train_batch_size=1,
        attn_implementation="sdpa",
    )], "V100"),
    ("gemma 2 eager", [_arguments(
        bf16=True, learning_rate=1e-5, model_name_or_path="google/gemma-2-9b-it", attn_implementation="eager"
    )], "A100"),
    ("dpo", [_arguments(
        bf16=True, learning_rate=5e-7, beta=0.1, max_length=2048, max_prompt_length=1024, gradient_checkpointing=True,
        lr_scheduler_type="cosine", warmup_ratio=0.1, loss_type="sigmoid",
    )], "A100"),
    ("grpo", [_arguments(
        bf16=True, learning_rate=1e-6, num_generations=8, per_device_train_batch_size=8, max_completion_length=1024,
        beta=0.0, temperature=1.0, use_vllm=True,
    )], "H100"),
    ("lora rank-stabilised", [_arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, lora_r=256, lora_alpha=16, use_rslora=True
    )], "A100"),
    ("dora", [_arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, use_dora=True, lora_r=16, lora_alpha=32
    )], "L40S"),
    ("lora high rate, short", [_arguments(
        bf16=True, learning_rate=1e-3, use_peft=True, lora_r=8, lora_alpha=8, max_steps=200, warmup_steps=10
    )], "4090"),
    ("tf32", [_arguments(learning_rate=3e-5, tf32=True, bf16=False, fp16=False, optim="adamw_torch_fused")], "A100"),
    ("trl shell", [("run.sh", _SHELL_TRL), ("acc.yaml", _ACCELERATE)], "A100"),
    ("medicalgpt shell lora", [("run_sft.sh", _SHELL_MEDICAL)], "A100"),
    ("accelerate fsdp", [
        _arguments(bf16=True, learning_rate=1e-5, gradient_checkpointing=True), ("f.yaml", _FSDP)
    ], "H100"),
    ("accelerate zero 3, two nodes", [
        _arguments(bf16=True, learning_rate=1e-5, gradient_accumulation_steps=8), ("a.yaml", _ACCELERATE_ZERO)
    ], "A100"),
    ("ludwig full", [("l.yaml", _LUDWIG_FULL)], "A10G"),
    ("ludwig qlora short", [("l.yaml", _LUDWIG_INT8)], "3090"),
    ("axolotl fsdp full", [("a.yaml", _yaml_of(**{
        **_AXOLOTL, "learning_rate": 1e-5, "sequence_len": 8192, "sample_packing": True, "flash_attention": True,
        "fsdp": ["full_shard", "auto_wrap"], "optimizer": "adamw_torch_fused", "bf16": True, "tf32": True,
        "fsdp_config": {"fsdp_offload_params": False, "fsdp_state_dict_type": "FULL_STATE_DICT"},
    }))], "H100"),
    ("axolotl chatml on llama base", [("a.yaml", _yaml_of(**{
        **_AXOLOTL, "learning_rate": 2e-4, "adapter": "lora", "lora_r": 16, "lora_alpha": 32, "chat_template": "chatml",
        "lora_modules_to_save": ["embed_tokens", "lm_head"], "lora_target_modules": ["q_proj", "v_proj"],
        "special_tokens": {"eos_token": "<|im_end|>", "pad_token": "<|end_of_text|>"},
        "base_model": "NousResearch/Meta-Llama-3-8B",
    }))], "A100"),
    ("llama-factory qlora", [("f.yaml", _yaml_of(
        **_FACTORY, finetuning_type="lora", lora_target="all", lora_rank=16, quantization_bit=4,
        quantization_method="bnb", learning_rate=1e-4, bf16=True, flash_attn="fa2",
    ))], "4090"),
    ("llama-factory qwen dpo", [("f.yaml", _yaml_of(**{
        **_FACTORY, "stage": "dpo", "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "template": "qwen",
        "finetuning_type": "lora", "lora_rank": 8, "pref_beta": 0.1, "learning_rate": 5e-6, "bf16": True,
    }))], "A100"),
    ("llama-factory pre-training", [("f.yaml", _yaml_of(**{
        **_FACTORY, "stage": "pt", "finetuning_type": "full", "learning_rate": 3e-5, "bf16": True, "packing": True,
    }))], "H800"),
    ("deepspeed bf16, float32 accumulation", [("ds.json", {
        "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 256,
        "communication_data_type": "fp32", "zero_optimization": {"stage": 2, "overlap_comm": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100, "total_num_steps": 3000}},
    })], "A100"),
    # odd but sound
    ("lion, a tenth of the rate", [_arguments(
        bf16=True, learning_rate=1e-6, optim="lion_32bit", adam_beta2=0.99
    )], "A100"),
    ("sgd at 0.1", [_arguments(bf16=True, learning_rate=0.1, optim="sgd", max_grad_norm=1.0)], "A100"),
    ("prodigy at 1.0", [("a.yaml", _yaml_of(**{
        **_AXOLOTL, "optimizer": "prodigy", "learning_rate": 1.0, "adapter": "lora", "lora_r": 16, "lora_alpha": 16
    }))], "4090"),
    ("float32 weights under fp16 on a T4", [_arguments(
        fp16=True, dtype="float32", learning_rate=1e-5, per_device_train_batch_size=1, gradient_accumulation_steps=64
    )], "T4"),
    ("clipping at 0.01", [_arguments(bf16=True, learning_rate=1e-5, max_grad_norm=0.01)], "A100"),
    ("one epoch of one-row batches", [_arguments(
        bf16=True, learning_rate=1e-5, per_device_train_batch_size=1, gradient_accumulation_steps=1, num_train_epochs=1
    )], "L4"),
    ("alpha far below the rank", [_arguments(
        bf16=True, learning_rate=5e-4, use_peft=True, lora_r=512, lora_alpha=16
    )], "H100"),
    ("static scale that was tried out", [("ds.json", {
        **_ZERO_HALF, "fp16": {"enabled": True, "loss_scale": 512}
    })], "V100"),
    ("low start of the scale", [("ds.json", {
        **_ZERO_HALF, "fp16": {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 100, "hysteresis": 4}
    })], "V100"),
    ("bfloat16 on the CPU", [_arguments(
        bf16=True, use_cpu=True, learning_rate=1e-5, max_steps=20, warmup_steps=2
    )], "A100"),
    # forms of public projects at which check once cried wolf
    ("a program with flags of its own", [("r.sh", """#!/bin/bash
deepspeed chat.py --actor_gradient_checkpointing --per_device_training_batch_size 4 --max_seq_len 1024 \\
    --lm_model_name_or_path own/base --dataset_names a b --zero_stage 2 --learning_rate 1e-5 --dtype bf16
""")], "A100"),
    ("quantised by a switch of its own", [("r.sh", """
accelerate launch --mixed_precision bf16 --use_deepspeed --zero_stage 3 --num_machines 1 --main_process_port 29501 \\
    tune.py --use_qlora --use_flash_attn --dataset_train_splits train --learning_rate 1e-4 --lora_r 64 --lora_alpha 16
""")], "A100"),
    ("images, not text", [("r.sh", """
accelerate launch --mixed_precision=fp16 train_picture.py --pretrained_model_name_or_path own/diffusion \\
    --train_batch_size 4 --max_train_steps 5000 --learning_rate 1e-4 --lr_scheduler cosine --max_grad_norm 1
""")], "V100"),
    ("comments between the flags", [("r.sh", """
python grpo.py --bf16 True --learning_rate 1e-6 \\
    `# memory` \\
    --lora_r 16 --lora_alpha 32 --lora_dropout 0.1 \\
    \\
    `# answers` \\
    --num_generations 8 --max_completion_length 512 "$@"
""")], "A100"),
    ("base_model as a flag", [("r.sh", """
WORLD_SIZE=2 torchrun --nproc_per_node 2 finetune.py --base_model own/llama-7b --data_path d.json --batch_size 128 \\
    --micro_batch_size 4 --learning_rate 3e-4 --cutoff_len 512 --lora_r 8 --lora_alpha 16 --dataset_dir data
""")], "3090"),
    ("distilled from a teacher", [("r.sh", """
swift rlhf --rlhf_type grpo --model own/small --teacher_model own/large --num_generations 1 --torch_dtype bfloat16 \\
    --learning_rate 1e-5 --vllm_max_model_len 4096 --deepspeed zero2
""")], "H100"),
    ("ludwig table", [("l.yaml", """
input_features: [{name: age, type: number}, {name: job, type: category}]
output_features: [{name: income, type: binary}]
trainer: {learning_rate: 0.02, batch_size: 1024, optimizer: {type: adam}, learning_rate_scheduler: {decay: exponential}}
""")], "T4"),
    ("ludwig soft prompt", [("l.yaml", """
model_type: llm
base_model: own/opt-350m
adapter: {type: prompt_tuning, num_virtual_tokens: 16}
input_features: [{name: review, type: text}]
output_features: [{name: label, type: text}]
trainer: {type: finetune, learning_rate: 0.03, batch_size: 1, epochs: 3}
""")], "A10G"),
    ("llama-factory, second generation", [("f.yaml", _yaml_of(
        model="own/qwen", model_class="llm", train_dataset="d.yaml", micro_batch_size=2, cutoff_len=2048, bf16=True,
        learning_rate=1e-4, peft_config={"name": "lora", "r": 16, "lora_alpha": 32}, dist_config={"name": "fsdp2"},
    ))], "A100"),
    ("llama-factory on megatron", [("f.yaml", _yaml_of(**{
        **_FACTORY, "finetuning_type": "full", "learning_rate": 2e-5, "bf16": True, "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2, "use_distributed_optimizer": True, "apply_rope_fusion": True,
    }))], "H100"),
    ("comments in JSON", [("ds.json", {
        "_comment": "tried on two nodes", "//": "see the wiki", "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2, "_note": "small buckets"},
    })], "A100"),
    ("a scale that may fall below one", [("ds.json", {
        **_ZERO_HALF, "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "min_loss_scale": 1e-10}
    })], "V100"),
    ("axolotl, 8 bit and bfloat16", [("a.yaml", _yaml_of(**{
        **_AXOLOTL, "load_in_8bit": True, "adapter": "lora", "lora_r": 32, "lora_alpha": 16, "bf16": True,
        "learning_rate": 2e-4, "lora_target_linear": True, "unsloth_lora_mlp": True,
    }))], "A100"),
    ("float32 weights under a launcher's bf16", [
        ("r.sh", "accelerate launch --config_file a.yaml t.py --torch_dtype float32 --learning_rate 1e-5\n"),
        ("a.yaml", _ACCELERATE),
    ], "A100"),
    ("Lightning in bfloat16", [("lightning.yaml", """
seed_everything: 7
trainer: {accelerator: gpu, devices: 1, precision: bf16-mixed, max_epochs: 3, gradient_clip_val: 1.0}
model: {class_path: own.TunedDecoder, init_args: {base: own/decoder, lora_r: 16, lora_alpha: 32}}
data: {class_path: own.Chats, init_args: {batch_size: 8}}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.0001, weight_decay: 0.01}}
""")], "A100"),
    ("accelerate in the cloud", [("a.yaml", """
compute_environment: AMAZON_SAGEMAKER
distributed_type: DATA_PARALLEL
mixed_precision: bf16
ec2_instance_type: ml.p4d.24xlarge
iam_role_name: own
num_machines: 2
py_version: py310
region: us-east-1
""")], "A100"),
    ("anchors", [("c.yaml", """
rate: &rate 1.0e-5
learning_rate: *rate
bf16: true
per_device_train_batch_size: 4
output_dir: out
""")], "A100"),
    ("a script of Windows", [("r.sh", _SHELL.replace("\n", "\r\n"))], "A100"),
]  # fmt: skip
