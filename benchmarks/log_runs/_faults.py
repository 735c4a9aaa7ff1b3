"""What is wrong with a broken run: one function for each fault, and the causes that are accepted for it.

A fault is what a user or a machine did (a truncated row, a flipped bit, a rate, a dtype); everything non-finite comes
about in the framework that trains.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import _world
import torch
from _run import Run
from _world import IGNORED, LLAMAS, VOCABULARY, Row, World, adapted, keep, padded, rows
from torch import Tensor
from transformers import get_scheduler

from finitune.gym.bits import with_stuck_exponent
from finitune.gym.faults import corrupt_checkpoint, fp16_activation_overflow
from finitune.gym.models import embedding_rows, tiny

CHANCE = 10.0
"""No sound model is so bad: the loss of guessing is log(528), 6.3."""

usual = functools.partial(_world.usual, rates=(2e-5, 1e-4, 2e-4))
"""At the learning rates of published recipes: only what is planted is wrong."""


def _masked_with_infinity(found: Sequence[Row]) -> dict[str, Tensor]:
    """Left padding and a mask of the user's own, causal and without padding: no key is left for a padding query."""
    batch = padded(found, left=True)
    real = batch["attention_mask"].bool()
    length = real.shape[1]
    seen = torch.ones(length, length).tril().bool() & real[:, None, :]
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    return {**batch, "attention_mask": mask[:, None]}


def _masked_twice(found: Sequence[Row]) -> dict[str, Tensor]:
    """Two masks, of documents and of padding, each with the least float32 where it forbids, are added."""
    batch = padded(found)
    real = batch["attention_mask"].bool()
    length = real.shape[1]
    least = torch.finfo(torch.float32).min
    pairs = real[:, :, None] & real[:, None, :]
    document = torch.zeros(pairs.shape).masked_fill(~(pairs & torch.ones(length, length).tril().bool()), least)
    padding = torch.zeros(pairs.shape).masked_fill(~pairs, least)
    return {**batch, "attention_mask": (document + padding)[:, None]}


def _uneven(found: list[Row], choice: Random) -> list[Row]:
    lengths = [choice.randint(12, len(row["input_ids"])) for row in found]
    return [{key: ids[:n] for key, ids in row.items()} for row, n in zip(found, lengths, strict=True)]


def all_ignored(run: Run, _directory: Path) -> World:
    """The prompts fill the context, so that truncation leaves no answer in any row."""
    world = usual(run)
    return replace(world, rows=[{**row, "labels": [IGNORED] * len(row["labels"])} for row in world.rows])


def some_ignored(run: Run, _directory: Path) -> World:
    """From some step on, a row in a few is one long prompt; batches are of one row."""
    world = usual(run)
    choice = run.choice("ignored")
    first = choice.randint(4, 30)
    kept = [
        {**row, "labels": [IGNORED] * len(row["labels"])} if index >= first and (index - first) % 4 == 0 else row
        for index, row in enumerate(world.rows[:64])
    ]
    return replace(world, rows=kept, batch=1)


def evaluation_ignored(run: Run, _directory: Path) -> World:
    world = usual(run)
    ignored = [{**row, "labels": [IGNORED] * len(row["labels"])} for row in rows(2, run, seed=99)]
    return replace(world, evaluation=ignored)


def flipped_bit(run: Run, directory: Path) -> World:
    """One bit of the weights on disk: a norm weight of 1 becomes inf, another weight a number of 1e36.

    Where it does not show in the first batch, such as in the row of a token that is not there, it is another bit.
    """
    choice = run.choice("bit")
    world = usual(run, families=("llama", "gpt2"))
    names = [name for name, weight in world.model.named_parameters()
             if "norm" in name or "ln_" in name or choice.random() < 0.1]  # fmt: skip
    model, first = world.model, world.collate(world.rows[: world.batch])
    while bool(model(**first).loss < CHANCE):
        keep(world.model, directory)
        corrupt_checkpoint.flip_bit(
            directory / "model" / "model.safetensors",
            choice.choice([n for n in names if not n.endswith("bias")]),
            choice.randint(0, 60),
        )
        model = type(world.model).from_pretrained(directory / "model", attn_implementation="eager")
    return replace(world, model=model)


def overflowing_channels(run: Run, _directory: Path) -> World:
    """A few MLP channels answer one token beyond 65504; the token comes from some step on."""
    choice = run.choice("channels")
    family = choice.choice(("llama", "mistral", "gpt2"))
    model = tiny(family, seed=run.seed)
    with torch.no_grad():
        fp16_activation_overflow.plant(model, family)
    world = replace(usual(run), model=model)
    first = choice.choice((0, 0, 3, 12)) * world.batch
    for row in world.rows[first :: world.batch]:
        for key in ("input_ids", "labels"):
            row[key][10:12] = [fp16_activation_overflow.TOKEN] * 2
    return world


def untrained_token(run: Run, _directory: Path) -> World:
    """Every row opens with a token whose embedding row was never trained."""
    choice = run.choice("token")
    world = usual(run, steps=40)
    model = tiny(choice.choice(LLAMAS), layers=4, seed=run.seed, initializer_range=0.1)
    weights = embedding_rows(model)
    token = choice.randint(3, 15)
    with torch.no_grad():
        weights.mul_(0.2)
        weights[token] = torch.randn(weights.shape[1], generator=torch.Generator().manual_seed(1)) * 1e-8
    for row in world.rows:
        row["input_ids"][0] = token
    return replace(world, model=model, rate=1e-4)


def high_rate(run: Run, _directory: Path) -> World:
    choice = run.choice("rate")
    world = replace(usual(run), schedule="constant_with_warmup")
    if choice.random() < 0.5:
        return _broken(replace(world, rate=choice.choice((0.3, 1.0, 3.0)), warmup=choice.choice((0, 5))), _faster)
    rate = {"fp32": 100.0, "bf16": 100.0}.get(run.precision, 30.0)
    return _broken(replace(world, optimizer="sgd", rate=rate, warmup=choice.choice((0, 8)), clip=0.0), _faster)


def bit_in_activation(run: Run, _directory: Path) -> World:
    world = usual(run, steps=48)
    step, calls = run.choice("step").randint(8, 40), 0

    def fail_once(_module: Any, _args: Any, output: Tensor) -> None:
        nonlocal calls
        calls += torch.is_grad_enabled()
        if calls == step * world.accumulate:
            output.data = with_stuck_exponent(output)

    names = ("input_layernorm", "ln_1")
    chosen = [module for name, module in world.model.named_modules() if name.rpartition(".")[2] in names]
    chosen[-1].register_forward_hook(fail_once)
    return replace(world, interval=1)


def bit_in_gradient(run: Run, _directory: Path) -> World:
    world = usual(run, steps=48)
    step, calls = run.choice("step").randint(8, 40), 0

    def fail_once(gradient: Tensor) -> Tensor | None:
        nonlocal calls
        calls += 1
        return with_stuck_exponent(gradient) if calls == step else None

    chosen = [weight for _, weight in world.model.named_parameters() if weight.ndim == 2]
    run.choice("weight").choice(chosen[1:-1]).register_hook(fail_once)
    return replace(world, interval=1)


def half_weights(run: Run, _directory: Path) -> World:
    """The weights are loaded in float16 and trained as they are."""
    return _broken(replace(usual(run), dtype="float16"), _faster)


def infinite_mask(run: Run, _directory: Path) -> World:
    world = usual(run)
    return replace(world, rows=_uneven(world.rows, run.choice("lengths")), collate=_masked_with_infinity)


def masks_added(run: Run, _directory: Path) -> World:
    world = usual(run)
    return replace(world, rows=_uneven(world.rows, run.choice("lengths")), collate=_masked_twice)


def token_outside(run: Run, _directory: Path) -> World:
    """The tokenizer got new tokens, the embedding no new rows; they are met at some step."""
    world = usual(run)
    first = run.choice("first").choice((0, 0, 9, 20))
    for row in world.rows[first * world.batch + 1 :: 7]:
        row["input_ids"][-1] = VOCABULARY + run.seed % 3
        row["labels"][-1] = IGNORED
    return world


def checkpointed_adapter(run: Run, _directory: Path) -> World:
    """The user's own re-entrant checkpoints over frozen embeddings: no input of theirs asks for a gradient."""
    world = usual(run, families=LLAMAS)
    return replace(world, checkpointing=True, adapter={"r": 8, "lora_alpha": 16})


def large_alpha(run: Run, _directory: Path) -> World:
    choice = run.choice("alpha")
    rank = choice.choice((2, 4, 8))
    targets = ["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"]
    settings = {"r": rank, "lora_alpha": rank * choice.choice((512, 1024)), "target_modules": targets}
    world = replace(usual(run, families=LLAMAS), adapter=settings, clip=0.0)
    return _broken(world, lambda of: replace(of, adapter={**of.adapter, "lora_alpha": 4 * of.adapter["lora_alpha"]}))


def _faster(world: World) -> World:
    return replace(world, rate=3 * world.rate)


def _broken(world: World, worse: Callable[[World], World]) -> World:
    """The world, made worse until a loop in which it is tried does not learn: else it is a sound run."""
    while _learns(world):
        world = worse(world)
    return world


def _learns(world: World) -> bool:
    """The loss of the last batches is below that of the first."""
    model = adapted(replace(world, model=copy.deepcopy(world.model), checkpointing=False))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    kind = torch.optim.SGD if world.optimizer == "sgd" else torch.optim.AdamW
    optimizer = kind(weights, lr=world.rate, fused=True)  # the default of the trainers
    schedule = get_scheduler(world.schedule, optimizer, world.warmup, world.steps)
    losses: list[float] = []
    for at in range(0, len(world.rows), world.batch):
        loss = model(**world.collate(world.rows[at : at + world.batch])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, world.clip or float("inf"))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return sum(losses[-5:]) / 5 < losses[0]


FAULTS: Mapping[str, tuple[Callable[[Run, Path], World], tuple[str, ...]]] = {
    "all-ignored": (all_ignored, ("all-labels-ignored",)),
    "some-ignored": (some_ignored, ("all-labels-ignored",)),
    "evaluation-ignored": (evaluation_ignored, ("all-labels-ignored",)),
    "flipped-bit": (flipped_bit, ("corrupt-checkpoint",)),
    "overflowing-channels": (overflowing_channels, ("fp16-activation-overflow",)),
    "untrained-token": (untrained_token, ("untrained-token-embeddings",)),
    "high-rate": (high_rate, ("lr-too-high",)),
    "bit-in-activation": (bit_in_activation, ("hardware-fault-sdc",)),
    "bit-in-gradient": (bit_in_gradient, ("hardware-fault-sdc",)),
    "half-weights-scaled": (half_weights, ("fp16-trainable-weights",)),
    "half-weights": (half_weights, ("adam-eps-underflow-fp16",)),
    "infinite-mask": (infinite_mask, ("fully-masked-attention-rows",)),
    "masks-added": (masks_added, ("mask-sentinel-overflow", "fully-masked-attention-rows")),
    "token-outside": (token_outside, ("tokenizer-vocab-mismatch",)),
    "checkpointed-adapter": (checkpointed_adapter, ("gradient-checkpointing",)),
    "large-alpha": (large_alpha, ("lora-scale-or-init",)),
    "two-configs": (lambda run, _: usual(run), ("zero-config-error", "config-disagreement")),
    "nan-saved": (half_weights, ("nan-saved-in-checkpoint", "adam-eps-underflow-fp16")),
}
"""Kind -> the world, and the causes that are accepted: more than one where the mechanism is two."""
