"""Healthy controls: runs with something unusual about them and nothing wrong, on which finitune must stay silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from finitune.gym.data import FIRST_WORD, Batch, batches
from finitune.gym.loop import Options, Run, prepare
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import tiny

PACKED = 4


def adamw(parameters: list[Any]) -> Optimizer:
    return AdamW(parameters, lr=1e-3)


def bfloat16_autocast() -> Run:
    """float32 weights, bfloat16 products, a learning rate that warms up."""

    def warm_up(optimizer: Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))

    return prepare(tiny("qwen2"), batches(12), adamw, Options(dtype="bfloat16-autocast", schedule=warm_up))


def lora() -> Run:
    """Frozen base; the gradient of every lora_A is exactly zero at the first step, because lora_B begins at zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(tiny("mistral"), adapter)
    return prepare(model, batches(12), lambda parameters: AdamW(parameters, lr=1e-2))


def gradient_accumulation() -> Run:
    return prepare(tiny("llama"), batches(32), adamw, Options(accumulate=4))


def closure() -> Run:
    """The optimizer runs forward and backward itself."""
    return prepare(tiny("gpt2"), batches(12), adamw, Options(closure=True, accumulate=2))


def domain_shift() -> Run:
    """Halfway the language changes to its mirror image: the loss jumps, and that is no fault."""
    before, after = 4 * batches(6), batches(8, seed=1)
    last = tiny("llama").config.vocab_size - 1
    for batch in after:
        for key in ("input_ids", "labels"):
            batch[key] = FIRST_WORD + last - batch[key]
    return prepare(tiny("llama"), before + after, lambda parameters: AdamW(parameters, lr=3e-3))


def packed() -> Run:
    """Several sequences in one row, told apart by their positions; the first token of each is no target."""
    return prepare(tiny("llama"), [_packed(batch) for batch in batches(12)], adamw)


def _packed(batch: Batch) -> Batch:
    rows, length = batch["input_ids"].shape
    positions = torch.arange(length).repeat(rows).unsqueeze(0)
    labels = batch["labels"].reshape(1, -1).masked_fill(positions == 0, -100)
    return {"input_ids": batch["input_ids"].reshape(1, -1), "labels": labels, "position_ids": positions}


def float16_scale_settles() -> Run:
    """Pure float16 whose loss scale begins too high, as DeepSpeed's may: the first steps overflow and are skipped."""
    options = Options(dtype="float16", scaler=lambda: DynamicLossScaler(scale=2.0**24))
    return prepare(tiny("llama"), batches(24), adamw, options)


def float16_autocast_scale_settles() -> Run:
    """The same under autocast with torch's GradScaler."""
    return prepare(tiny("gpt2"), batches(24), adamw, Options(dtype="float16-autocast", initial_scale=2.0**24))


CONTROLS: Mapping[str, Callable[[], Run]] = {
    "bfloat16-autocast": bfloat16_autocast,
    "lora": lora,
    "gradient-accumulation": gradient_accumulation,
    "closure": closure,
    "domain-shift": domain_shift,
    "packed": packed,
    "float16-scale-settles": float16_scale_settles,
    "float16-autocast-scale-settles": float16_autocast_scale_settles,
}
