"""Healing, measured: broken runs of fresh seeds, each four ways, and healthy ones that must not be touched.

    python benchmarks/heal.py [SEEDS]        by default 101,102,103; none of them is used by a test

Each fault is one that a remedy can cure. A run counts as cured where it ends by itself, its last steps are finite, and
its final loss (mean of the last FINAL steps) is not above that of the same run without the fault by more than NOISE
times the spread of that loss over seeds. `random` changes the run as often as `healed` may, by a remedy and a target
drawn by chance, and proves nothing.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW

from finitune.gym.data import batches
from finitune.gym.faults import fp16_activation_overflow
from finitune.gym.healthy import CONTROLS
from finitune.gym.loop import Options, Run, prepare, train
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import embedding_rows, tiny
from finitune.monitor.heal.cure import Case, Unable
from finitune.monitor.heal.float32_forward import compute_in_float32
from finitune.monitor.heal.policy import MOST_PER_RUN, Healing
from finitune.monitor.heal.remedies.reinit_token_rows import new_rows, write_rows
from finitune.monitor.heal.step_again import check_able, put_gradients
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.process import Stopped
from finitune.monitor.replay.fewer_rows import rows_of, without
from finitune.monitor.watch import watch
from finitune.recording import Recording

STEPS, BEGINS = 40, 6
FINAL = 8
NOISE = 2.0
LEAST_NOISE = 0.05
"""Of a loss near 6; three seeds may lie closer together than the steps of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one run ended. `loss` is NaN where it did not come to its end."""

    loss: float
    seconds: float
    changes: int = 0
    cost: float = 0.0


@dataclass(slots=True, kw_only=True)
class Plain:
    """A loop that has not begun; `steps` yields the losses."""

    model: nn.Module
    optimizer: Any
    steps: Iterator[float]


def untrained_rows(seed: int, *, faulty: bool) -> Plain:
    """A row of zeros at position 0, under float16 autocast."""
    model = tiny("llama", layers=4, initializer_range=0.1, seed=seed)
    with torch.no_grad():
        rows = embedding_rows(model).mul_(0.2)
        if faulty:
            rows[6] = 0
    data = batches(STEPS, seed=seed)
    for batch in data[BEGINS - 1 :]:
        batch["input_ids"][:, 0] = 6
        batch["labels"][:, 0] = 6
    options = Options(dtype="float16-autocast", initial_scale=2.0**14)
    return _run(prepare(model, data, lambda p: AdamW(p, lr=2e-3), options))


def overflowing_module(seed: int, *, faulty: bool) -> Plain:
    """Channels of one MLP leave float16 where a token appears, in a run of pure float16 with float32 masters."""
    model = tiny("llama", seed=seed)
    with torch.no_grad():
        fp16_activation_overflow.plant(model, "llama")
    data = batches(STEPS, seed=seed)
    for batch in data[BEGINS - 1 :] if faulty else ():
        batch["input_ids"][1, 10:12] = fp16_activation_overflow.TOKEN
        batch["labels"][1, 10:12] = fp16_activation_overflow.TOKEN
    scale = fp16_activation_overflow.SCALE
    options = Options(dtype="float16", scaler=lambda: DynamicLossScaler(scale=scale), initial_scale=scale)
    return _run(prepare(model, data, lambda p: AdamW(p, lr=5e-4), options))


def rate_too_high(seed: int, *, faulty: bool) -> Plain:
    """The fault of the gym: a hundred times what plain SGD bears, from the first step on."""
    model = tiny("llama", seed=seed)
    data, rate = batches(STEPS, seed=seed), 100.0 if faulty else 1.0
    return _run(prepare(model, data, lambda p: SGD(p, lr=rate), Options(clip=None)))


def rate_jumps(seed: int, *, faulty: bool) -> Plain:
    """From one step on the rate is 2,000 times what the run bears; without the fault it stays."""
    model = tiny("llama", seed=seed)
    options = Options(clip=None)
    run = prepare(model, batches(STEPS, seed=seed), lambda p: SGD(p, lr=0.5), options)
    return _run(run, at={BEGINS: lambda: run.optimizer.param_groups[0].update(lr=1000.0)} if faulty else {})


def bad_records(seed: int, *, faulty: bool) -> Plain:
    """Regression on cached features, some of which are lost, in a plain loop with clipping."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = AdamW(model.parameters(), lr=1e-2)
    lost = random.Random(seed).sample(range(BEGINS, STEPS), 8) if faulty else ()

    def steps() -> Iterator[float]:
        for step in range(1, STEPS + 1):
            x = torch.randn(16, 8, generator=generator)
            y = x[:, :2] - x[:, 2:4]
            if step in lost:
                x[step % 16] = (math.nan, math.inf, -math.inf)[step % 3]
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            good = [row for row in range(16) if step not in lost or row != step % 16]
            with torch.no_grad():
                yield float(nn.functional.mse_loss(model(x[good]), y[good]))

    return Plain(model=model, optimizer=optimizer, steps=steps())


FAULTS: dict[str, Callable[..., Plain]] = {
    "untrained rows": untrained_rows, "overflowing module": overflowing_module, "rate too high": rate_too_high,
    "rate jumps": rate_jumps, "bad records": bad_records,
}  # fmt: skip


def _run(run: Run, at: dict[int, Callable[[], Any]] | None = None) -> Plain:
    def steps() -> Iterator[float]:
        for step in train(run):
            yield step.loss
            (at or {}).get(step.step + 1, lambda: None)()

    return Plain(model=run.model, optimizer=run.optimizer, steps=steps())


class ByChance(Healing):
    """Each incident is answered by a remedy and a target that are drawn, as often as Healing may act."""

    chance = random.Random(0)

    def treat(self, watched: Any, reading: Any, *, waits: bool = False, clip: Any = None) -> None:
        inquiry = self._incidents.open
        if inquiry is None or len(self.applied) >= MOST_PER_RUN or inquiry.event["id"] in self._looked_at:
            return
        self._looked_at[inquiry.event["id"]] = None
        case = Case(
            cause="", inquiry=inquiry, watched=watched, reading=reading, waits=waits, clip=clip,
            grad_norms=self._run.signals["grad_norm"],
        )  # fmt: skip
        with contextlib.suppress(Unable, ValueError, AttributeError):
            self.chance.choice((_rows, _module, _sample, _rate))(case, self.chance)
            self.applied.append(None)  # pyright: ignore[reportArgumentType]
            self._close_incident(watched)

    def step_ended(self, watched: Any, reading: Any) -> None:  # noqa: ARG002
        if watched.past is not None:
            watched.past.as_scheduled(watched.optimizer())

    def summary(self) -> list[str]:
        return []


def _rows(case: Case, chance: random.Random) -> None:
    weight = embedding_rows(case.watched.model)  # pyright: ignore[reportArgumentType]
    ids = [chance.randrange(weight.shape[0])]
    write_rows(weight, ids, new_rows(weight, ids))


def _module(case: Case, chance: random.Random) -> None:
    parts = [m for m in case.watched.model.modules() if [*m.parameters()]]  # pyright: ignore[reportOptionalMemberAccess]
    compute_in_float32(chance.choice(parts[1:]))


def _sample(case: Case, chance: random.Random) -> None:
    check_able(case)
    capture = case.inquiry.capture
    put_gradients(case, without(capture, {chance.randrange(sum(map(rows_of, capture.micro_steps)))}))


def _rate(case: Case, chance: random.Random) -> None:
    case.watched.past.factor *= chance.choice((0.1, 0.01, 0.001))


def ended(run: Plain, *, mode: str | None, healing: type[Healing] = Healing) -> Ended:
    """One run to its end, or to where it is stopped."""
    losses: list[float] = []
    began = time.perf_counter()
    changes, cost, stopped = 0, 0.0, False
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()), float16_on_cpu():
        if mode is None:
            with contextlib.suppress(Exception):  # DeepSpeed's scaler raises at its minimum
                losses += run.steps
        else:
            with watch(run.model, run.optimizer, run_dir=Path(directory) / "run", mode=mode) as monitor:
                gate: Any = monitor._gate
                if healing is not Healing:
                    gate.healing = healing(gate._run, gate._incidents)
                try:
                    for loss in run.steps:
                        losses.append(loss)
                except (Stopped, Exception):
                    stopped = True
            changes, cost = len(gate.healing.applied), gate.healing._seconds
            assert not Recording.load(Path(directory) / "run").events("broken") or healing is not Healing
    seconds = time.perf_counter() - began
    final = [loss for loss in losses[-FINAL:] if math.isfinite(loss)]
    whole = len(losses) == STEPS and not stopped and len(final) > FINAL / 2
    return Ended(loss=statistics.mean(final) if whole else math.nan, seconds=seconds, changes=changes, cost=cost)


def controls() -> tuple[int, int]:
    """Steps of healthy runs under heal, and how often one of them was changed, or came out otherwise."""
    steps = harmed = 0
    for build in CONTROLS.values():
        plain, healed = build(), build()
        with float16_on_cpu(), tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()):
            list(train(plain))
            with watch(healed.model, healed.optimizer, run_dir=Path(directory) / "run", mode="heal"):
                steps += sum(1 for _ in train(healed))
            changed = Recording.load(Path(directory) / "run").events("remedy")
        pairs = zip(plain.model.parameters(), healed.model.parameters(), strict=True)
        harmed += bool(changed) or not all(torch.equal(a, b) for a, b in pairs)
    return steps, harmed


def main() -> None:
    torch.set_num_threads(1)
    seeds = [int(part) for part in (sys.argv[1] if len(sys.argv) > 1 else "101,102,103").split(",")]
    print(f"{'fault':<20}{'never faulted':>15}{'unguarded':>12}{'healed':>10}{'random':>10}{'changes':>9}{'cost':>9}")
    cured = dict.fromkeys(("unguarded", "healed", "random"), 0)
    for name, build in FAULTS.items():
        whole = [ended(build(seed, faulty=False), mode=None) for seed in seeds]
        ways = {
            "unguarded": [ended(build(seed, faulty=True), mode=None) for seed in seeds],
            "healed": [ended(build(seed, faulty=True), mode="heal") for seed in seeds],
            "random": [ended(build(seed, faulty=True), mode="heal", healing=ByChance) for seed in seeds],
        }
        spread = max(statistics.stdev(one.loss for one in whole) if len(seeds) > 1 else 0.0, LEAST_NOISE)
        good = {
            way: sum(one.loss <= never.loss + NOISE * spread for one, never in zip(runs, whole, strict=True))
            for way, runs in ways.items()
        }
        for way, count in good.items():
            cured[way] += count
        share = {way: f"{count}/{len(seeds)}" for way, count in good.items()}
        healed = ways["healed"]
        print(
            f"{name:<20}{statistics.mean(one.loss for one in whole):>15.3f}{share['unguarded']:>12}"
            f"{share['healed']:>10}{share['random']:>10}{statistics.mean(one.changes for one in healed):>9.1f}"
            f"{statistics.mean(one.cost for one in healed):>7.1f} s",
            flush=True,
        )
        print(f"{'':<20}final losses healed {', '.join(f'{one.loss:.3f}' for one in healed)}; never faulted "
              f"{', '.join(f'{one.loss:.3f}' for one in whole)}")  # fmt: skip
    total = len(seeds) * len(FAULTS)
    print(f"\ncured: {', '.join(f'{way} {count} of {total}' for way, count in cured.items())}")
    steps, harmed = controls()
    print(f"healthy controls: {len(CONTROLS)} runs, {steps} steps, {harmed} changed or different in the last bit")


if __name__ == "__main__":
    main()
