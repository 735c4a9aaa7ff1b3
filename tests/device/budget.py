"""What the guard may cost on a GPU, per path, and what it does cost: a watched run minus the same run unwatched."""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as Folder
from typing import Protocol

from tests.device.counting import ASYNC, BLOCKING, COLLECTIVE, KERNEL, CountingDevice, Trace, added
from tests.device.paths import MICRO_BATCH_BYTES, RANKED, Model, Path, Training

import finitune

PACKAGE = Folder(finitune.__file__).parent
STEPS = 12
"""More than the guard's first looks at a training, which are in steps 1 to 8."""
_MODEL = Model()
_TENSORS = len(list(_MODEL.parameters()))
WEIGHTS = sum(p.numel() for p in _MODEL.parameters())
SCALARS = 16 * _TENSORS + 512
"""Bytes for a few numbers per trained tensor and a few per step."""
SAMPLED = 2 * 4 * sum(min(p.numel(), 1024) for p in _MODEL.parameters())
"""Every 16th step, from the first on, a sample of weights before and after the update; in a large model 0.5 MB."""
LOOK = 4 * WEIGHTS
"""In steps 1 to 5 and every 50th, a slice of the gradients before they are reduced; in a large model 1 MB at most."""
ONE_TENSOR = 4 * max(p.numel() for p in _MODEL.parameters())
"""In float32. Of a large tensor 2**22 elements at a time."""
KEPT = MICRO_BATCH_BYTES + SCALARS
"""After the verdict one micro-batch may be kept, of this step or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that the guard may add in one step.

    `first` are the reads for which the host waits in the first step, `reads` those in any later one, `queued` the
    copies that it does not wait for. Bytes are those alive on the device beyond the unwatched run: `until` between
    backward and the verdict, while the loop itself holds the batches of the step; `kept` after the step, when it holds
    nothing; `peak` at any time, in comparison with the same phase of the unwatched run. One copy is queued for each
    call of the model: whether its token ids are within the embedding must be known if the call ends in an assertion.
    """

    first: int = 1
    reads: int = 1
    queued: int = 1
    collectives: int = 0
    until: int = KEPT
    kept: int = KEPT
    peak: int = KEPT + SAMPLED


def _late(first: int = 1, collectives: int = 0, reads: int = 0, looks: int = 0) -> Budget:
    """The optimizer takes found_inf, so the verdict is read one step late, and the micro-batch waits for it.

    The state of most is made by the first step, which therefore has to be read.
    """
    held = KEPT + MICRO_BATCH_BYTES
    return Budget(
        first=first, reads=reads, queued=2, collectives=collectives, until=held + looks, kept=held,
        peak=held + SAMPLED + 6 * looks,
    )  # fmt: skip


def _float16(fused: bool = False) -> Budget:
    """The update of one float16 tensor at a time is computed beside the optimizer's, which its eps may spoil."""
    held = KEPT + MICRO_BATCH_BYTES * fused
    return Budget(reads=int(not fused), queued=1 + fused, until=held, kept=held, peak=held + SAMPLED + 14 * ONE_TENSOR)


def _ranks() -> Budget:
    """Where ranks hold the same weights, their reduction is compared with an independent one: one more read."""
    return Budget(first=2, reads=2, collectives=1, until=KEPT + LOOK, peak=KEPT + SAMPLED + 6 * LOOK)


BUDGETS = {
    "single-tensor": Budget(),
    "foreach": Budget(),
    "foreach, clipped": Budget(),
    "accumulation 4": Budget(queued=4),
    "accumulation 4, clipped": Budget(queued=4),
    "SGD with momentum": Budget(),
    "fused Adam": _late(),
    "fused AdamW": _late(),
    "fused AdamW, clipped": _late(),
    "fused Adagrad": _late(),
    "fused SGD with momentum": _late(),
    "bfloat16 autocast": Budget(),
    "bfloat16 weights": Budget(),
    "GradScaler, single-tensor": Budget(),
    "GradScaler, foreach": Budget(),
    "GradScaler, foreach, clipped": Budget(),
    "GradScaler, float16 autocast": Budget(),
    "GradScaler, fused": _late(),
    "GradScaler, fused, clipped": _late(),
    "GradScaler, fused SGD": _late(),
    "GradScaler, accumulation 4": Budget(queued=4),
    "float16 weights, foreach": _float16(),
    "float16 weights, fused": _float16(fused=True),
    "one float16 module": _float16(),
    "rate on the device": Budget(first=2),
    # It moves weights between the evaluations of its closure; they, the direction and a gradient have to be copied.
    "LBFGS": Budget(until=3 * 4 * WEIGHTS + KEPT, peak=3 * 4 * WEIGHTS + KEPT + SAMPLED),
    # Up to 16 MiB of weights and state are copied before its step, and looked at after it.
    "an optimizer of its own": Budget(first=2, reads=2, peak=2 * 4 * WEIGHTS + KEPT + SAMPLED),
    # One read for each step of an optimizer.
    "two optimizers": Budget(first=2, reads=2, queued=2, until=KEPT + SCALARS, kept=KEPT + SCALARS),
    "entropy bonus": Budget(),
    "KL divergence": Budget(),
    "teacher's logits": Budget(),
    "DDP": _ranks(),
    "DDP, clipped": _ranks(),
    "DDP, fused": _late(first=2, reads=2, collectives=1, looks=LOOK),
    "DDP, GradScaler": _ranks(),
    "FSDP2": Budget(first=2, collectives=1),
    "FSDP2, clipped": Budget(first=2, collectives=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a run: its trace, the bytes alive at the places that `Training.step` names, and the most before them.

    Bytes are counted from the begin of the run.
    """

    trace: Trace
    alive: dict[str, int]
    peaks: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What watching added to one step; fields as in Budget, `lines` by kind of event."""

    reads: int
    queued: int
    collectives: int
    kernels: int
    until: int
    kept: int
    peak: int
    lines: dict[str, Counter[str]]


class Device(Protocol):
    """What a step is measured on: `live` is in bytes."""

    @property
    def name(self) -> str: ...
    @property
    def live(self) -> int: ...
    def record(self, package: Folder | None = None) -> contextlib.AbstractContextManager[Trace]: ...


Watch = Callable[[Training, Folder, contextlib.ExitStack], None]


def watch(training: Training, run_dir: Folder, watches: contextlib.ExitStack) -> None:
    """Watch every optimizer of the training until `watches` is left."""
    for number, optimizer in enumerate(training.optimizers):
        watches.enter_context(finitune.watch(training.model, optimizer, run_dir=run_dir / str(number)))


def costs(device: Device, path: Path, run_dir: Folder, *, rank: int = 0, watch: Watch = watch) -> list[Cost]:
    """What `watch` adds to each of the first STEPS steps."""
    gc.collect()
    gc.freeze()  # what is there already is not looked at again by every collection
    try:
        unwatched = _run(device, path, run_dir, rank, lambda *_: None)
        watched = _run(device, path, run_dir, rank, watch)
    finally:
        gc.unfreeze()
    return [_cost(a, b) for a, b in zip(watched, unwatched, strict=True)]


def costs_on_a_rank(device: CountingDevice, rank: int, names: Sequence[str], run_dir: str) -> dict[str, list[Cost]]:
    """The same for paths of two ranks; to be given to `on_two_ranks`. Raises RuntimeError that names the path."""
    found = {}
    for path in RANKED:
        if path.name in names:
            try:
                found[path.name] = costs(device, path, Folder(run_dir) / path.name, rank=rank)
            except Exception as error:
                raise RuntimeError(path.name) from error
    return found


def _run(device: Device, path: Path, run_dir: Folder, rank: int, watch: Watch) -> list[Step]:
    gc.collect()
    base = device.live
    training = Training(path, device.name, rank=rank)
    steps = []
    with contextlib.ExitStack() as watches:
        watch(training, run_dir, watches)
        for _ in range(STEPS):
            alive: dict[str, int] = {}
            peaks: dict[str, int] = {}
            with device.record(PACKAGE) as trace:
                training.step(functools.partial(_measure, device, base, trace, alive, peaks))
            steps.append(Step(trace=trace, alive=alive, peaks=peaks))
    return steps


def _measure(device: Device, base: int, trace: Trace, alive: dict[str, int], peaks: dict[str, int], place: str) -> None:
    peaks[place] = trace.peak - base
    if place == "end":
        gc.collect()
    alive[place] = device.live - base
    trace.peak = device.live


def _cost(watched: Step, unwatched: Step) -> Cost:
    def more(kind: str) -> int:
        return watched.trace.count(kind) - unwatched.trace.count(kind)

    return Cost(
        reads=more(BLOCKING),
        queued=more(ASYNC),
        collectives=more(COLLECTIVE),
        kernels=more(KERNEL),
        until=watched.alive["backward"] - unwatched.alive["backward"],
        kept=watched.alive["end"] - unwatched.alive["end"],
        peak=max(watched.peaks[place] - unwatched.peaks[place] for place in watched.peaks),
        lines={kind: added(watched.trace, unwatched.trace, kind) for kind in (BLOCKING, ASYNC, COLLECTIVE)},
    )


def over(budget: Budget, steps: Sequence[Cost]) -> list[str]:
    """What exceeds the budget, one line each; empty where nothing does."""
    first, *later = steps
    most = {
        "reads in the first step": (first.reads, budget.first),
        "reads": (max(c.reads for c in later), budget.reads),
        "queued copies": (max(c.queued for c in steps), budget.queued),
        "collectives": (max(c.collectives for c in steps), budget.collectives),
        "bytes until the verdict": (max(c.until for c in steps), budget.until),
        "bytes kept": (max(c.kept for c in steps), budget.kept),
        "bytes at the peak": (max(c.peak for c in steps), budget.peak),
    }
    return [f"{name}: {seen}, at most {allowed}" for name, (seen, allowed) in most.items() if seen > allowed]


def usual(steps: Sequence[Cost], name: str) -> int:
    """What a later step costs: the median."""
    return int(statistics.median_high(getattr(cost, name) for cost in steps[1:]))
