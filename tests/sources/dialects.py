"""Files in the style of each project's documentation, sound as they are."""

from __future__ import annotations

TORCHTUNE = """
# tune run lora_finetune_single_device --config llama3/8B_lora.yaml
output_dir: /tmp/torchtune/llama3_8B/lora
model:
  _component_: torchtune.models.llama3.lora_llama3_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  lora_rank: 8
  lora_alpha: 16
  lora_dropout: 0.0
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: ${output_dir}/tokenizer.model
  max_seq_len: 4096
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: False
batch_size: 2
epochs: 1
gradient_accumulation_steps: 8
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  weight_decay: 0.01
  lr: 3e-4
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
clip_grad_norm: 1.0
compile: False
device: cuda
dtype: bf16
enable_activation_checkpointing: True
"""
HYDRA = """
defaults:
  - model: llama
  - optimizer: adamw
  - _self_
  - override hydra/launcher: submitit_slurm
seed: 42
batch: ${oc.env:BATCH,8}
steps: 10000
hydra:
  run:
    dir: outputs/${now:%Y-%m-%d}
trainer:
  _target_: lightning.Trainer
  precision: bf16-mixed
  max_steps: ${steps}
  gradient_clip_val: 1.0
  accumulate_grad_batches: ${eval:'2*2'}
data:
  batch_size: ${batch}
  max_length: 2048
"""
HYDRA_MODEL = """
_target_: transformers.AutoModelForCausalLM.from_pretrained
torch_dtype: bfloat16
attn_implementation: sdpa
"""
HYDRA_OPTIMIZER = """
_target_: torch.optim.AdamW
lr: 1e-4
eps: 1e-8
betas: [0.9, 0.999]
"""
VERL = """
set -x
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=512 \\
    data.filter_overlong_prompts=True \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \\
    actor_rollout_ref.actor.grad_clip=1.0 \\
    +actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.logger='["console","wandb"]' \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.total_epochs=15 $@
"""
VERL_SFT = """
torchrun -m --standalone --nnodes=1 --nproc_per_node=8 \\
    verl.trainer.fsdp_sft_trainer \\
    data.micro_batch_size_per_gpu=4 \\
    data.max_length=2048 \\
    model.partial_pretrain=/models/qwen \\
    model.lora_rank=32 \\
    model.lora_alpha=16 \\
    optim.lr=1e-4 \\
    optim.clip_grad=1.0 \\
    trainer.total_epochs=2
"""
OPENRLHF = """
set -x
LR=5e-6
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
   --max_len 2048 \\
   --input_key question \\
   --train_batch_size 256 \\
   --micro_train_batch_size 2 \\
   --pretrain /models/llama \\
   --save_path ./checkpoint/llama3-8b-sft \\
   --logging_steps 1 \\
   --zero_stage 2 \\
   --max_epochs 1 \\
   --bf16 \\
   --flash_attn \\
   --learning_rate $LR \\
   --max_norm 1.0 \\
   --gradient_checkpointing \\
   --packing_samples
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
"""
MEGATRON = """
#!/bin/bash
GPUS_PER_NODE=8
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes 1
)
MODEL_ARGS="
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024
"
TRAINING_ARGS=(
    --micro-batch-size 4
    --global-batch-size 32
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --bf16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py $MODEL_ARGS ${TRAINING_ARGS[@]} --tensor-model-parallel-size 2
"""
NEMO = """
name: megatron_gpt_sft
trainer:
  devices: 8
  accelerator: gpu
  precision: bf16-mixed
  max_steps: 1000
  gradient_clip_val: 1.0
  accumulate_grad_batches: 1
exp_manager:
  exp_dir: ${oc.env:RESULTS}
model:
  micro_batch_size: 1
  global_batch_size: 128
  native_amp_init_scale: 4294967296
  hysteresis: 2
  optim:
    name: distributed_fused_adam
    lr: 5e-6
    weight_decay: 0.01
    betas: [0.9, 0.98]
    sched:
      name: CosineAnnealing
      warmup_steps: 50
  peft:
    peft_scheme: lora
    lora_tuning:
      adapter_dim: 32
"""
SWIFT = """
CUDA_VISIBLE_DEVICES=0 \\
swift sft \\
    --model /models/qwen \\
    --train_type lora \\
    --torch_dtype bfloat16 \\
    --num_train_epochs 1 \\
    --per_device_train_batch_size 1 \\
    --learning_rate 1e-4 \\
    --lora_rank 8 \\
    --lora_alpha 32 \\
    --target_modules all-linear \\
    --gradient_accumulation_steps 16 \\
    --max_grad_norm 1.0 \\
    --max_length 2048 \\
    --warmup_ratio 0.05
"""
UNSLOTH = """
python unsloth-cli.py --model_name /models/llama-3-8b --max_seq_length 8192 --dtype None --load_in_4bit \\
--r 64 --lora_alpha 32 --lora_dropout 0.1 --bias "none" --use_gradient_checkpointing "unsloth" \\
--random_state 3407 --use_rslora --per_device_train_batch_size 4 --gradient_accumulation_steps 8 \\
--warmup_steps 5 --max_steps 400 --learning_rate 2e-6 --logging_steps 1 --optim "adamw_8bit" \\
--weight_decay 0.005 --lr_scheduler_type "linear" --seed 3407 --output_dir "outputs"
"""
SCRIPTS = {
    "verl.sh": VERL, "verl_sft.sh": VERL_SFT, "openrlhf.sh": OPENRLHF, "megatron.sh": MEGATRON, "swift.sh": SWIFT,
    "unsloth.sh": UNSLOTH,
}  # fmt: skip
FILES = {
    "torchtune.yaml": TORCHTUNE, "hydra.yaml": HYDRA, "nemo.yaml": NEMO,
    "verl.yaml": "actor_rollout_ref: {actor: {optim: {lr: 1e-6}}, rollout: {n: 1}}\nalgorithm: {adv_estimator: gae}\n",
    "openrlhf.json": '{"pretrain": "m", "micro_train_batch_size": 2, "bf16": true, "learning_rate": 5e-6}',
    "megatron.yaml": "num_layers: 2\ntrain_iters: 10\nclip_grad: 1.0\nbf16: true\nlr: 1e-5\n",
    "swift.json": '{"model": "m", "train_type": "full", "torch_dtype": "bfloat16", "learning_rate": 1e-5}',
}  # fmt: skip
