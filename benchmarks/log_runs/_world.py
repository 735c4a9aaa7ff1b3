"""What is trained, and what is wrong with it: model, rows and settings of each fault and of each healthy situation.

A fault is what a user or a machine did (a truncated row, a flipped bit, a rate, a dtype); everything non-finite comes
about in the framework that trains. The parts are those of `finitune.gym` where it has them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from _run import Run
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from finitune.gym.bits import with_stuck_exponent
from finitune.gym.data import batches
from finitune.gym.faults import corrupt_checkpoint, fp16_activation_overflow
from finitune.gym.models import embedding_rows, tiny

IGNORED = -100
VOCABULARY = 512
PAD = 0
CHANCE = 10.0
"""No sound model is so bad: that of guessing is log(528), 6.3."""
LLAMAS = ("llama", "mistral", "qwen2")
FAMILIES = (*LLAMAS, "gpt2")

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


# Rows.


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


# The plain training that every world is a change of.


def usual(run: Run, *, steps: int = 0, families: Sequence[str] = FAMILIES) -> World:
    choice = run.choice("usual")
    rates = (2e-5, 1e-4, 2e-4) if run.kind in FAULTS else (1e-3, 2e-3, 5e-3)  # tiny models learn at the higher ones
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


# Faults.


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
        _keep(world.model, directory)
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
        return replace(world, rate=choice.choice((0.3, 1.0, 3.0)), warmup=choice.choice((0, 5)))
    rate = {"fp32": 100.0, "bf16": 100.0}.get(run.precision, 30.0)
    return replace(world, optimizer="sgd", rate=rate, warmup=choice.choice((0, 8)), clip=0.0)


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
    return replace(usual(run), dtype="float16")


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
    return replace(usual(run, families=LLAMAS), adapter=settings, rate=1e-2, clip=0.0)


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


# Healthy situations.


def lora(run: Run, _directory: Path) -> World:
    return replace(usual(run, families=LLAMAS), adapter={"r": 8, "lora_alpha": 16}, rate=5e-3)


def accumulated(run: Run, _directory: Path) -> World:
    return replace(usual(run, steps=96), accumulate=4)


def settles(run: Run, _directory: Path) -> World:
    """The loss scale begins far too high."""
    return replace(usual(run, steps=64), initial_scale=2.0 ** run.choice("scale").randint(20, 30), interval=1)


def overflows_now_and_then(run: Run, _directory: Path) -> World:
    """The loss scale is raised every few steps, until one is skipped; again and again."""
    scale = 2.0 ** run.choice("scale").randint(16, 20)
    return replace(usual(run, steps=96), growth=run.choice("growth").randint(8, 16), initial_scale=scale, interval=1)


def spike(run: Run, _directory: Path) -> World:
    """One or two batches of another kind, with nothing that could be known about them."""
    world = usual(run, steps=48)
    choice = run.choice("spike")
    strange = rows(2, run, seed=77, noise=1.0)
    at = choice.randint(16, 30) * world.batch
    return replace(world, rows=world.rows[:at] + strange[: 4 * choice.randint(1, 2)] + world.rows[at:], rate=5e-3)


def shift(run: Run, _directory: Path) -> World:
    """Halfway the language changes to its mirror image: the loss jumps and is learned down again."""
    world = usual(run, steps=80)
    for row in world.rows[len(world.rows) // 2 :]:
        for key in ("input_ids", "labels"):
            row[key] = [i if i == IGNORED else VOCABULARY + 15 - i for i in row[key]]
    return replace(world, rate=5e-3)


def memorised(run: Run, _directory: Path) -> World:
    """The same few rows again and again, until the loss prints as 0 or nearly so."""
    few = rows(2, run, noise=0.0)
    return replace(usual(run), rows=few * 45, rate=1e-2, warmup=5, schedule="constant_with_warmup")


def rough_start(run: Run, _directory: Path) -> World:
    """A rate at the edge: the loss goes up as it warms up, and comes down again."""
    return replace(usual(run, steps=96), rate=0.03, warmup=12, schedule="cosine")


def packed(run: Run, _directory: Path) -> World:
    """Long rows, one to a batch."""
    world = usual(run, steps=40)
    long = [{key: [i for row in world.rows[at : at + 4] for i in row[key]] for key in world.rows[0]}
            for at in range(0, len(world.rows), 4)]  # fmt: skip
    return replace(world, rows=long, batch=1)


def by_length(run: Run, _directory: Path) -> World:
    """Grouped by length, so that the loss saws."""
    world = usual(run)
    lengths = [6 + 18 * (i // world.batch % 6) // 5 for i in range(len(world.rows))]
    cut = [{key: ids[:n] for key, ids in row.items()} for row, n in zip(world.rows, lengths, strict=True)]
    return replace(world, rows=[{**row, "labels": row["input_ids"]} for row in cut])


def evaluated(run: Run, _directory: Path) -> World:
    return replace(usual(run), evaluation=rows(3, run, seed=55))


HEALTHY: Mapping[str, Callable[[Run, Path], World]] = {
    "steady": lambda run, _: usual(run),
    "lora": lora,
    "accumulated": accumulated,
    "settles": settles,
    "overflows-now-and-then": overflows_now_and_then,
    "spike": spike,
    "shift": shift,
    "memorised": memorised,
    "rough-start": rough_start,
    "packed": packed,
    "by-length": by_length,
    "evaluated": evaluated,
    "resumed": lambda run, _: replace(usual(run, steps=48), resume=True),
    "crashed": lambda run, _: replace(usual(run, steps=48), resume=True, crash=True),
}


def world(run: Run, directory: Path) -> World:
    """What is trained in this run. The model of a broken one is kept in `directory`, as it was before."""
    own = (FAULTS[run.kind][0] if run.kind in FAULTS else HEALTHY[run.kind])(run, directory)
    if run.kind in FAULTS and int(os.environ.get("RANK", "0")) == 0:
        _keep(own.model, directory)
    return own


def _keep(model: Any, directory: Path) -> None:
    """As if it had been there before: nothing of it is in the log."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model.save_pretrained(directory / "model")
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


def truth(run: Run) -> Sequence[str]:
    return FAULTS[run.kind][1] if run.kind in FAULTS else ()


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
