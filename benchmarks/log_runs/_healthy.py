"""Healthy situations that look like faults for a while, or that a reader of logs may take for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from _run import Run
from _world import IGNORED, LLAMAS, VOCABULARY, World, rows, usual


def lora(run: Run, _directory: Path) -> World:
    return replace(usual(run, families=LLAMAS), adapter={"r": 8, "lora_alpha": 16}, rate=2e-3)


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
