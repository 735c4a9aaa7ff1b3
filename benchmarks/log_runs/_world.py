"""What is trained: a tiny model, its rows and its settings. `usual` is the plain training that others are a change of.

The parts are those of `finitune.gym` where it has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from _run import Run
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from finitune.gym.data import batches
from finitune.gym.models import tiny

IGNORED = -100
VOCABULARY = 512
PAD = 0
LLAMAS = ("llama", "mistral", "qwen2")
FAMILIES = (*LLAMAS, "gpt2")
LEARNING = (1e-3, 2e-3, 5e-3)
"""Rates at which tiny models learn."""

Row = dict[str, list[int]]
Collate = Callable[[Sequence[Row]], dict[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A training as it is given to a framework. `rows` come in order, `batch` at a time."""

    model: Any
    rows: list[Row]
    collate: Collate
    evaluation: list[Row] = field(default_factory=list)
    batch: int = 4
    accumulate: int = 1
    rate: float = 2e-3
    warmup: int = 0
    schedule: str = "linear"
    optimizer: str = "adamw"
    clip: float = 1.0
    initial_scale: float = 2.0**16
    growth: int = 2000
    adapter: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = ""
    checkpointing: bool = False
    interval: int = 1
    resume: bool = False
    crash: bool = False

    @property
    def steps(self) -> int:
        return len(self.rows) // (self.batch * self.accumulate)


def rows(count: int, run: Run, *, noise: float = 0.2, seed: int | None = None, batch: int = 4) -> list[Row]:
    """`count` batches of rows; a few tokens at the front of each are a prompt, and no target."""
    prompt = run.choice("prompt").choice((0, 0, 4, 8))
    out: list[Row] = []
    for one in batches(count, rows=batch, length=24, seed=run.seed if seed is None else seed, noise=noise):
        for ids in one["input_ids"].tolist():
            out.append({"input_ids": ids, "labels": [IGNORED] * prompt + ids[prompt:]})
    return out


def padded(found: Sequence[Row], *, left: bool = False) -> dict[str, Tensor]:
    """The usual collator: rows filled up, and a mask of what is real."""
    length = max(len(row["input_ids"]) for row in found)

    def filled(key: str, value: int) -> Tensor:
        fills = [[value] * (length - len(row[key])) for row in found]
        return torch.tensor([f + row[key] if left else row[key] + f for f, row in zip(fills, found, strict=True)])

    real = [{"real": [1] * len(row["input_ids"])} for row in found]
    fills = [[0] * (length - len(row["real"])) for row in real]
    mask = torch.tensor([f + r["real"] if left else r["real"] + f for f, r in zip(fills, real, strict=True)])
    return {"input_ids": filled("input_ids", PAD), "attention_mask": mask, "labels": filled("labels", IGNORED)}


def usual(run: Run, *, steps: int = 0, families: Sequence[str] = FAMILIES, rates: Sequence[float] = LEARNING) -> World:
    choice = run.choice("usual")
    steps = steps or choice.randint(24, 48)
    return World(
        model=tiny(choice.choice(families), seed=run.seed),
        rows=rows(steps, run),
        collate=padded,
        rate=choice.choice(rates),
        warmup=choice.choice((0, 3, 6)),
        schedule=choice.choice(("linear", "cosine", "constant_with_warmup")),
        interval=choice.choice((1, 1, 1, 2, 5)),
    )


def keep(model: Any, directory: Path) -> None:
    """As if it had been there before: nothing of it is in the log."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model.save_pretrained(directory / "model")
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


def adapted(world: World) -> Any:
    """The model in its dtype, with its adapter and its checkpoints, where the world has them."""
    if world.dtype:
        world.model.to(getattr(torch, world.dtype))
    if not world.adapter:
        return world.model
    from peft import LoraConfig, get_peft_model

    settings = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", **world.adapter}
    model = get_peft_model(world.model, LoraConfig(**settings))
    if world.checkpointing:
        for module in model.modules():
            if type(module).__name__.endswith("DecoderLayer"):
                module.forward = _checkpointed(module.forward)
    return model


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(forward, **kwargs), *args, use_reentrant=True)

    return run
