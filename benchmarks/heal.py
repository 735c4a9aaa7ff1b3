"""Healing, measured: broken runs of fresh seeds, each five ways, and healthy ones that must not be touched.

    python benchmarks/heal.py [SEEDS [FAULT,...]]     by default seeds 101,102,103, which no test uses, and all faults

Each fault is one that a remedy can cure. A run counts as cured where it ends by itself, its last steps are finite, and
its final loss (mean of the last FINAL steps) is not above that of the same run without the fault by more than NOISE
times the spread of that loss over seeds. `guarded` discards bad steps and changes nothing; `random` changes the run as
often as `healed` may, by a remedy and a target drawn by chance, and proves nothing.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from heal_faults import FAULTS, Plain

from finitune.gym.healthy import CONTROLS
from finitune.gym.loop import train
from finitune.gym.models import embedding_rows
from finitune.monitor.capture.loss_scalers import scaler_of
from finitune.monitor.heal.cure import Case, Unable
from finitune.monitor.heal.float32_forward import compute_in_float32
from finitune.monitor.heal.policy import MOST_PER_RUN, Healing
from finitune.monitor.heal.remedies.float32_trainable_weights import Masters
from finitune.monitor.heal.remedies.reinit_token_rows import new_rows, write_rows
from finitune.monitor.heal.step_again import check_able, followed, put_gradients
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.process import Stopped
from finitune.monitor.replay.attention import take_kernel
from finitune.monitor.replay.fewer_rows import rows_of, without
from finitune.monitor.watch import watch
from finitune.recording import Recording

FINAL = 8
NOISE = 2.0
LEAST_NOISE = 0.01
"""Of the loss; three seeds may lie closer together than the steps of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one run ended. `loss` is NaN where it did not come to its end."""

    loss: float
    seconds: float
    changes: int = 0
    cost: float = 0.0


class ByChance(Healing):
    """Each incident is answered by a remedy and a target that are drawn, as often as Healing may act."""

    chance = random.Random(0)

    def treat(self, watched: Any, reading: Any, clip: Any) -> None:
        inquiry = self._incidents.open
        with followed(watched):
            if inquiry is not None:
                self._draw(inquiry, watched, reading, waits=True, clip=clip)

    def _draw(self, inquiry: Any, watched: Any, reading: Any, *, waits: bool, clip: Any) -> None:
        if len(self.applied) >= MOST_PER_RUN or inquiry.event["id"] in self._looked_at:
            return
        self._looked_at[inquiry.event["id"]] = None
        case = Case(
            cause="", inquiry=inquiry, watched=watched, reading=reading, waits=waits, clip=clip,
            grad_norms=self._run.signals["grad_norm"],
        )  # fmt: skip
        with contextlib.suppress(Unable, ValueError, AttributeError, IndexError, TypeError):
            self.chance.choice((_rows, _module, _sample, _rate, _kernel, _scale, _moments, _masters))(case, self.chance)
            self.applied.append(None)  # pyright: ignore[reportArgumentType]
            self._close_incident(watched)

    def treat_sighted(self, watched: Any, reading: Any) -> None:
        """An incident of finite numbers is drawn for as well."""
        inquiry, self._incidents.sighted = self._incidents.sighted, None
        if inquiry is not None and inquiry.optimizer is watched.optimizer():
            self._draw(inquiry, watched, reading, waits=False, clip=None)

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
    check_able(case.now)
    capture = case.inquiry.capture
    one = chance.randrange(sum(map(rows_of, capture.micro_steps)))
    put_gradients(case.now, lambda: without(capture, {one}))


def _rate(case: Case, chance: random.Random) -> None:
    case.watched.past.factor *= chance.choice((0.1, 0.01, 0.001))


def _kernel(case: Case, chance: random.Random) -> None:
    take_kernel(case.watched.model, chance.choice(("sdpa", "eager")))  # pyright: ignore[reportArgumentType]


def _scale(case: Case, chance: random.Random) -> None:
    scaler = scaler_of(case.watched.optimizer(), case.inquiry.capture)
    what = chance.choice(("scale", "floor", "window"))
    scaler.put(what, scaler.get(what) * chance.choice((0.25, 4.0)))  # pyright: ignore[reportOptionalMemberAccess, reportOptionalOperand]


def _moments(case: Case, chance: random.Random) -> None:
    state = case.watched.optimizer().state
    del state[chance.choice([*state])]


def _masters(case: Case, chance: random.Random) -> None:
    chosen = [p for p in case.watched.parameters() if p.dtype == torch.bfloat16]
    Masters(case.watched.optimizer(), [chance.choice(chosen)])


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
            if gate.healing is not None:
                changes, cost = len(gate.healing.applied), sum(gate.healing._seconds.values())
            assert not Recording.load(Path(directory) / "run").events("broken") or healing is not Healing
    seconds = time.perf_counter() - began
    final = [loss for loss in losses[-FINAL:] if math.isfinite(loss)]
    whole = len(losses) == run.length and not stopped and len(final) > FINAL / 2
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
    print(
        f"{'fault':<30}{'never faulted':>14}{'unguarded':>11}{'guarded':>9}{'healed':>8}{'random':>8}"
        f"{'changes':>9}{'cost':>9}"
    )
    cured = dict.fromkeys(("unguarded", "guarded", "healed", "random"), 0)
    asked = {fault: FAULTS[fault] for fault in (sys.argv[2].split(",") if len(sys.argv) > 2 else FAULTS)}
    for name, family, build in [(name, family, build) for name, (build, of) in asked.items() for family in of]:
        whole = [ended(build(family, seed, faulty=False), mode=None) for seed in seeds]
        ways = {
            "unguarded": [ended(build(family, seed, faulty=True), mode=None) for seed in seeds],
            "guarded": [ended(build(family, seed, faulty=True), mode="guard") for seed in seeds],
            "healed": [ended(build(family, seed, faulty=True), mode="heal") for seed in seeds],
            "random": [ended(build(family, seed, faulty=True), mode="heal", healing=ByChance) for seed in seeds],
        }
        losses = [one.loss for one in whole]
        spread = max(statistics.stdev(losses) if len(seeds) > 1 else 0.0, LEAST_NOISE * statistics.mean(losses))
        good = {
            way: sum(one.loss <= never.loss + NOISE * spread for one, never in zip(runs, whole, strict=True))
            for way, runs in ways.items()
        }
        for way, count in good.items():
            cured[way] += count
        share = {way: f"{count}/{len(seeds)}" for way, count in good.items()}
        healed = ways["healed"]
        print(
            f"{f'{name}, {family}':<30}{statistics.mean(one.loss for one in whole):>14.3f}{share['unguarded']:>11}"
            f"{share['guarded']:>9}{share['healed']:>8}{share['random']:>8}"
            f"{statistics.mean(one.changes for one in healed):>9.1f}"
            f"{statistics.mean(one.cost for one in healed):>7.1f} s",
            flush=True,
        )
        print(f"{'':<30}final losses healed {', '.join(f'{one.loss:.3f}' for one in healed)}; never faulted "
              f"{', '.join(f'{one.loss:.3f}' for one in whole)}")  # fmt: skip
    total = len(seeds) * sum(len(families) for _, families in asked.values())
    print(f"\ncured: {', '.join(f'{way} {count} of {total}' for way, count in cured.items())}")
    if len(sys.argv) > 2:
        return
    steps, harmed = controls()
    print(f"healthy controls: {len(CONTROLS)} runs, {steps} steps, {harmed} changed or different in the last bit")


if __name__ == "__main__":
    main()
