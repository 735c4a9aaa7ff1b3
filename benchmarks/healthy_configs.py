"""Configurations that train well, own and realistic, in every format that `finitune check` reads.

Each is (name, files, hardware); what several files share stands in `healthy_files.py`.
Ten are odd but sound: settings that look wrong and have a reason.
"""

from __future__ import annotations

from healthy_files import (
    ACCELERATE,
    ACCELERATE_ZERO,
    AXOLOTL,
    FACTORY,
    FSDP,
    LUDWIG,
    LUDWIG_FULL,
    LUDWIG_INT8,
    SHELL,
    SHELL_MEDICAL,
    SHELL_TRL,
    SHELL_V100,
    ZERO2,
    ZERO3,
    ZERO_HALF,
    File,
    arguments,
    yaml_of,
)

HEALTHY: list[tuple[str, list[File], str]] = [
    ("full bf16", [arguments(bf16=True, learning_rate=2e-5, warmup_ratio=0.03)], "A100"),
    ("full bf16 cosine", [arguments(bf16=True, learning_rate=1e-5, lr_scheduler_type="cosine")], "H100"),
    ("full fp32", [arguments(learning_rate=5e-5, fp16=False, bf16=False)], "V100"),
    ("full fp16 with scaler", [arguments(fp16=True, learning_rate=5e-5, max_grad_norm=1.0)], "V100"),
    ("lora bf16", [arguments(bf16=True, learning_rate=2e-4, use_peft=True, lora_r=16, lora_alpha=32)], "4090"),
    ("lora bf16 weights", [arguments(bf16=True, dtype="bfloat16", learning_rate=2e-4, use_peft=True)], "A100"),
    ("lora fp16 weights", [arguments(fp16=True, dtype="float16", learning_rate=1e-4, use_peft=True)], "T4"),
    ("lora alpha 16 r 64", [arguments(bf16=True, learning_rate=2e-4, lora_r=64, lora_alpha=16, use_peft=True)], "A10"),
    ("qlora", [arguments(
        bf16=True, learning_rate=2e-4, use_peft=True, load_in_4bit=True, bnb_4bit_compute_dtype="bfloat16",
        optim="paged_adamw_32bit", max_grad_norm=0.3,
    )], "3090"),
    ("qlora 8-bit adam", [arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, load_in_4bit=True, optim="paged_adamw_8bit"
    )], "L4"),
    ("adafactor", [arguments(bf16=True, learning_rate=1e-3, optim="adafactor")], "A100"),
    ("accumulation", [arguments(bf16=True, learning_rate=1e-5, gradient_accumulation_steps=32)], "H200"),
    ("sdpa packing", [arguments(bf16=True, learning_rate=2e-5, packing=True, max_length=4096)], "H100"),
    ("flash", [arguments(
        bf16=True, learning_rate=2e-5, attn_implementation="flash_attention_2", packing=True
    )], "A100"),
    ("eps 1e-6", [arguments(bf16=True, learning_rate=3e-5, adam_epsilon=1e-6, adam_beta2=0.95)], "A100"),
    ("zero 2 auto", [arguments(bf16=True, learning_rate=1e-5), ("ds.json", ZERO2)], "A100"),
    ("zero 3 offload", [("ds.json", ZERO3)], "A100"),
    ("zero 1 fp16", [("ds.json", ZERO_HALF)], "V100"),
    ("zero 2 bf16 weights", [arguments(bf16=True, dtype="bfloat16", learning_rate=1e-5), ("ds.json", ZERO2)], "H800"),
    ("axolotl full", [("a.yaml", yaml_of(**AXOLOTL, learning_rate=2e-5))], "A100"),
    ("axolotl lora", [("a.yaml", yaml_of(
        **AXOLOTL, learning_rate=2e-4, adapter="lora", lora_r=32, lora_alpha=16, lora_target_linear=True
    ))], "3090"),
    ("axolotl flash packing", [("a.yaml", yaml_of(
        **AXOLOTL, learning_rate=2e-5, sample_packing=True, flash_attention=True
    ))], "H100"),
    ("axolotl qlora", [("a.yaml", yaml_of(**{
        **AXOLOTL, "load_in_4bit": True, "adapter": "qlora", "learning_rate": 2e-4, "lora_r": 32, "lora_alpha": 16,
        "optimizer": "paged_adamw_32bit",
    }))], "4090"),
    ("llama-factory lora", [("f.yaml", yaml_of(
        **FACTORY, finetuning_type="lora", lora_target="all", lora_rank=8, learning_rate=1e-4, bf16=True
    ))], "A100"),
    ("llama-factory full", [("f.yaml", yaml_of(
        **FACTORY, finetuning_type="full", learning_rate=1e-5, bf16=True
    ))], "H100"),
    ("llama-factory fp16 lora", [("f.yaml", yaml_of(
        **FACTORY, finetuning_type="lora", lora_rank=16, lora_alpha=32, learning_rate=5e-5, fp16=True
    ))], "V100"),
    ("llama-factory pure bf16", [("f.yaml", yaml_of(
        **FACTORY, finetuning_type="full", learning_rate=1e-5, pure_bf16=True
    ))], "A100"),
    ("ludwig qlora", [("l.yaml", LUDWIG)], "A100"),
    ("accelerate", [arguments(bf16=True, learning_rate=1e-5), ("acc.yaml", ACCELERATE)], "A100"),
    ("shell", [("run.sh", SHELL)], "A100"),
    ("V100 fp16 lora alpha 2r", [arguments(
        fp16=True, learning_rate=2e-4, use_peft=True, lora_r=16, lora_alpha=32, warmup_ratio=0.03, max_grad_norm=1.0
    )], "V100"),
    ("V100 fp16 zero 2", [("run.sh", SHELL_V100), ("ds.json", ZERO2)], "V100"),
    ("T4 qlora fp16 compute", [arguments(
        fp16=True, learning_rate=2e-4, use_peft=True, load_in_4bit=True, bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype="float16", optim="paged_adamw_8bit", lora_r=16, lora_alpha=16, max_length=2048,
        model_name_or_path="unsloth/tinyllama-bnb-4bit",
    )], "T4"),
    ("2080 Ti fp16 classifier", [arguments(
        fp16=True, learning_rate=3e-5, weight_decay=0.01, per_device_eval_batch_size=64, eval_strategy="epoch",
        model_name_or_path="bert-base-uncased", max_seq_length=128, warmup_ratio=0.1,
    )], "2080 Ti"),
    ("qlora nf4 double quant", [arguments(
        bf16=True, learning_rate=2e-4, use_peft=True, lora_r=64, lora_alpha=16, lora_dropout=0.1, load_in_4bit=True,
        bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16", use_bnb_nested_quant=True,
        optim="paged_adamw_32bit", max_grad_norm=0.3, group_by_length=True, lr_scheduler_type="constant",
    )], "A100"),
    ("zero 3 fp32 master", [arguments(
        bf16=True, dtype="bfloat16", learning_rate=5e-6, lr_scheduler_type="cosine", warmup_ratio=0.03,
        gradient_checkpointing=True,
    ), ("ds.json", {**ZERO2, "zero_optimization": {"stage": 3, "overlap_comm": True}})], "H100"),
    ("cosine without warm-up, small rate", [arguments(
        bf16=True, learning_rate=2e-6, lr_scheduler_type="cosine", warmup_steps=0, weight_decay=0.0
    )], "A100"),
    ("packing with flash", [arguments(
        bf16=True, learning_rate=1e-5, packing=True, max_length=8192, attn_implementation="flash_attention_2",
        gradient_accumulation_steps=2,
    )], "H100"),
    ("packing with flash 3", [arguments(
        bf16=True, learning_rate=1e-5, packing=True, max_length=16384,
        model_init_kwargs={"attn_implementation": "kernels-community/flash-attn3", "dtype": "float32"},
    )], "H200"),
    ("left padding, eager, bf16", [arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, padding_side="left", attn_implementation="eager"
    )], "A100"),
    ("left padding for generation, fp16 sdpa", [arguments(
        fp16=True, learning_rate=1e-4, use_peft=True, padding_side="left", per_device_train_batch_size=1,
        attn_implementation="sdpa",
    )], "V100"),
    ("gemma 2 eager", [arguments(
        bf16=True, learning_rate=1e-5, model_name_or_path="google/gemma-2-9b-it", attn_implementation="eager"
    )], "A100"),
    ("dpo", [arguments(
        bf16=True, learning_rate=5e-7, beta=0.1, max_length=2048, max_prompt_length=1024, gradient_checkpointing=True,
        lr_scheduler_type="cosine", warmup_ratio=0.1, loss_type="sigmoid",
    )], "A100"),
    ("grpo", [arguments(
        bf16=True, learning_rate=1e-6, num_generations=8, per_device_train_batch_size=8, max_completion_length=1024,
        beta=0.0, temperature=1.0, use_vllm=True,
    )], "H100"),
    ("lora rank-stabilised", [arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, lora_r=256, lora_alpha=16, use_rslora=True
    )], "A100"),
    ("dora", [arguments(
        bf16=True, learning_rate=1e-4, use_peft=True, use_dora=True, lora_r=16, lora_alpha=32
    )], "L40S"),
    ("lora high rate, short", [arguments(
        bf16=True, learning_rate=1e-3, use_peft=True, lora_r=8, lora_alpha=8, max_steps=200, warmup_steps=10
    )], "4090"),
    ("tf32", [arguments(learning_rate=3e-5, tf32=True, bf16=False, fp16=False, optim="adamw_torch_fused")], "A100"),
    ("trl shell", [("run.sh", SHELL_TRL), ("acc.yaml", ACCELERATE)], "A100"),
    ("medicalgpt shell lora", [("run_sft.sh", SHELL_MEDICAL)], "A100"),
    ("accelerate fsdp", [
        arguments(bf16=True, learning_rate=1e-5, gradient_checkpointing=True), ("f.yaml", FSDP)
    ], "H100"),
    ("accelerate zero 3, two nodes", [
        arguments(bf16=True, learning_rate=1e-5, gradient_accumulation_steps=8), ("a.yaml", ACCELERATE_ZERO)
    ], "A100"),
    ("ludwig full", [("l.yaml", LUDWIG_FULL)], "A10G"),
    ("ludwig qlora short", [("l.yaml", LUDWIG_INT8)], "3090"),
    ("axolotl fsdp full", [("a.yaml", yaml_of(**{
        **AXOLOTL, "learning_rate": 1e-5, "sequence_len": 8192, "sample_packing": True, "flash_attention": True,
        "fsdp": ["full_shard", "auto_wrap"], "optimizer": "adamw_torch_fused", "bf16": True, "tf32": True,
        "fsdp_config": {"fsdp_offload_params": False, "fsdp_state_dict_type": "FULL_STATE_DICT"},
    }))], "H100"),
    ("axolotl chatml on llama base", [("a.yaml", yaml_of(**{
        **AXOLOTL, "learning_rate": 2e-4, "adapter": "lora", "lora_r": 16, "lora_alpha": 32, "chat_template": "chatml",
        "lora_modules_to_save": ["embed_tokens", "lm_head"], "lora_target_modules": ["q_proj", "v_proj"],
        "special_tokens": {"eos_token": "<|im_end|>", "pad_token": "<|end_of_text|>"},
        "base_model": "NousResearch/Meta-Llama-3-8B",
    }))], "A100"),
    ("llama-factory qlora", [("f.yaml", yaml_of(
        **FACTORY, finetuning_type="lora", lora_target="all", lora_rank=16, quantization_bit=4,
        quantization_method="bnb", learning_rate=1e-4, bf16=True, flash_attn="fa2",
    ))], "4090"),
    ("llama-factory qwen dpo", [("f.yaml", yaml_of(**{
        **FACTORY, "stage": "dpo", "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "template": "qwen",
        "finetuning_type": "lora", "lora_rank": 8, "pref_beta": 0.1, "learning_rate": 5e-6, "bf16": True,
    }))], "A100"),
    ("llama-factory pre-training", [("f.yaml", yaml_of(**{
        **FACTORY, "stage": "pt", "finetuning_type": "full", "learning_rate": 3e-5, "bf16": True, "packing": True,
    }))], "H800"),
    ("deepspeed bf16, float32 accumulation", [("ds.json", {
        "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 256,
        "communication_data_type": "fp32", "zero_optimization": {"stage": 2, "overlap_comm": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100, "total_num_steps": 3000}},
    })], "A100"),
    # odd but sound
    ("lion, a tenth of the rate", [arguments(
        bf16=True, learning_rate=1e-6, optim="lion_32bit", adam_beta2=0.99
    )], "A100"),
    ("sgd at 0.1", [arguments(bf16=True, learning_rate=0.1, optim="sgd", max_grad_norm=1.0)], "A100"),
    ("prodigy at 1.0", [("a.yaml", yaml_of(**{
        **AXOLOTL, "optimizer": "prodigy", "learning_rate": 1.0, "adapter": "lora", "lora_r": 16, "lora_alpha": 16
    }))], "4090"),
    ("float32 weights under fp16 on a T4", [arguments(
        fp16=True, dtype="float32", learning_rate=1e-5, per_device_train_batch_size=1, gradient_accumulation_steps=64
    )], "T4"),
    ("clipping at 0.01", [arguments(bf16=True, learning_rate=1e-5, max_grad_norm=0.01)], "A100"),
    ("one epoch of one-row batches", [arguments(
        bf16=True, learning_rate=1e-5, per_device_train_batch_size=1, gradient_accumulation_steps=1, num_train_epochs=1
    )], "L4"),
    ("alpha far below the rank", [arguments(
        bf16=True, learning_rate=5e-4, use_peft=True, lora_r=512, lora_alpha=16
    )], "H100"),
    ("static scale that was tried out", [("ds.json", {
        **ZERO_HALF, "fp16": {"enabled": True, "loss_scale": 512}
    })], "V100"),
    ("low start of the scale", [("ds.json", {
        **ZERO_HALF, "fp16": {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 100, "hysteresis": 4}
    })], "V100"),
    ("bfloat16 on the CPU", [arguments(
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
    ("llama-factory, second generation", [("f.yaml", yaml_of(
        model="own/qwen", model_class="llm", train_dataset="d.yaml", micro_batch_size=2, cutoff_len=2048, bf16=True,
        learning_rate=1e-4, peft_config={"name": "lora", "r": 16, "lora_alpha": 32}, dist_config={"name": "fsdp2"},
    ))], "A100"),
    ("llama-factory on megatron", [("f.yaml", yaml_of(**{
        **FACTORY, "finetuning_type": "full", "learning_rate": 2e-5, "bf16": True, "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2, "use_distributed_optimizer": True, "apply_rope_fusion": True,
    }))], "H100"),
    ("comments in JSON", [("ds.json", {
        "_comment": "tried on two nodes", "//": "see the wiki", "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2, "_note": "small buckets"},
    })], "A100"),
    ("a scale that may fall below one", [("ds.json", {
        **ZERO_HALF, "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "min_loss_scale": 1e-10}
    })], "V100"),
    ("axolotl, 8 bit and bfloat16", [("a.yaml", yaml_of(**{
        **AXOLOTL, "load_in_8bit": True, "adapter": "lora", "lora_r": 32, "lora_alpha": 16, "bf16": True,
        "learning_rate": 2e-4, "lora_target_linear": True, "unsloth_lora_mlp": True,
    }))], "A100"),
    ("float32 weights under a launcher's bf16", [
        ("r.sh", "accelerate launch --config_file a.yaml t.py --torch_dtype float32 --learning_rate 1e-5\n"),
        ("a.yaml", ACCELERATE),
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
    ("a script of Windows", [("r.sh", SHELL.replace("\n", "\r\n"))], "A100"),
]  # fmt: skip
