"""What the guard adds to a training step on a GPU, beside its budget, counted on a device in pure Python.

    python -m benchmarks.budget [--only TEXT] [--lines]

Each row is one training loop (`tests/device/paths.py`), run twice for 12 steps on the device of
`tests/device/counting`: watched and unwatched. A cell is the difference between the two and, behind the stroke, the
budget (`tests/device/budget.py`); what exceeds it is marked. Columns:

    first, usual, worst   reads for which the host waits: in step 1, the median and the most of steps 2 to 12
    queued, collectives   copies for which nobody waits, and collectives: the most in a step
    kernels               the median of steps 2 to 12; no budget
    until, kept, peak     bytes on the device: between backward and the verdict; after the step; at most in a phase

The lower rows are trainings on two ranks with gloo, those of rank 0. DeepSpeed works on the CPU, where a read is not
seen: only its collectives are counted. `--lines` names the lines of the guard that read, copy and communicate.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path as Folder
from typing import Any

import torch
import torch.nn.functional as F
from tests.device.budget import BUDGETS, PACKAGE, STEPS, Budget, Cost, costs, costs_on_a_rank, usual
from tests.device.counting import COLLECTIVE, CountingDevice, added, install
from tests.device.paths import PATHS, RANKED
from tests.device.two_ranks import on_two_ranks

import finitune

STAGES = (0, 1, 2, 3)
HEADS = ("first", "usual", "worst", "queued", "collectives", "kernels", "until", "kept", "peak")
WIDTHS = (9, 9, 9, 9, 12, 9, 15, 15, 15)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains TEXT")
    arguments.add_argument("--lines", action="store_true", help="name the lines of the guard behind the numbers")
    chosen = arguments.parse_args()
    device = install()
    print(f"{'':30}" + "".join(f"{head:>{width}}" for head, width in zip(HEADS, WIDTHS, strict=True)))
    exceeded = measured = missing = 0
    for name, steps in _measured(device, chosen.only):
        if isinstance(steps, str):
            missing += 1
            print(f"{name:30}  {steps}")
            continue
        measured += 1
        cells = row(BUDGETS.get(name), steps)
        exceeded += any(cell.endswith("!") for cell in cells)
        print(f"{name:30}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
        if chosen.lines:
            for line, count in sum((c for c in steps[-1].lines.values()), Counter()).most_common():
                print(f"{'':30}  {count} x {line}")
    print(f"\n{exceeded} of {measured} rows exceed their budget (!); {missing} were not measured.")


def _measured(device: CountingDevice, only: str) -> Iterator[tuple[str, Sequence[Cost] | str]]:
    with tempfile.TemporaryDirectory() as directory:
        for number, path in enumerate(path for path in PATHS if only in path.name):
            yield path.name, costs(device, path, Folder(directory) / str(number))
        names = [path.name for path in RANKED if only in path.name]
        if names:
            yield from on_two_ranks(costs_on_a_rank, names, directory)[0].items()
        for stage in STAGES:
            name = f"DeepSpeed ZeRO {stage}, bfloat16"
            if only in name:
                yield name, _zero(stage, f"{directory}/zero-{stage}")


def row(budget: Budget | None, steps: Sequence[Cost]) -> list[str]:
    """The cells of one path; without a budget the reads and bytes were not measured."""
    if budget is None:
        return ["-"] * 4 + [_cell(max(c.collectives for c in steps), 1)] + ["-"] * 4

    def most(name: str, of: Sequence[Cost]) -> int:
        return max(getattr(cost, name) for cost in of)

    return [
        _cell(steps[0].reads, budget.first),
        _cell(usual(steps, "reads"), budget.reads),
        _cell(most("reads", steps[1:]), budget.reads),
        _cell(most("queued", steps), budget.queued),
        _cell(most("collectives", steps), budget.collectives),
        str(usual(steps, "kernels")),
        _cell(most("until", steps), budget.until),
        _cell(most("kept", steps), budget.kept),
        _cell(most("peak", steps), budget.peak),
    ]


def _cell(seen: int, allowed: int) -> str:
    return f"{seen}/{allowed}{'!' if seen > allowed else ' '}"


def _zero(stage: int, run_dir: str) -> Sequence[Cost] | str:
    if importlib.util.find_spec("deepspeed") is None:
        return "not installed"
    try:
        return on_two_ranks(zero_on_a_rank, stage, run_dir)[0]
    except RuntimeError as error:
        return str(error).splitlines()[-1]


def zero_on_a_rank(device: CountingDevice, rank: int, stage: int, run_dir: str) -> list[Cost]:
    """Collectives that watching adds to an engine of DeepSpeed on the CPU; everything else is not measured."""
    unwatched = _zero_steps(device, rank, stage, None)
    watched = _zero_steps(device, rank, stage, run_dir)
    return [
        Cost(
            reads=0, queued=0, kernels=0, until=0, kept=0, peak=0,
            collectives=a.count(COLLECTIVE) - b.count(COLLECTIVE), lines={COLLECTIVE: added(a, b, COLLECTIVE)},
        )
        for a, b in zip(watched, unwatched, strict=True)
    ]  # fmt: skip


def _zero_steps(device: CountingDevice, rank: int, stage: int, run_dir: str | None) -> list[Any]:
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    logging.disable(logging.WARNING)
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it would be compiled
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
    monitor = finitune.watch(engine, engine.optimizer, run_dir=run_dir) if run_dir else None
    traces = []
    for step in range(STEPS):
        x = torch.randn(2, 8, generator=torch.Generator().manual_seed(2 * step + rank)).bfloat16()
        with device.record(PACKAGE) as trace:
            engine.backward(F.cross_entropy(engine(x).float(), torch.tensor([0, 1])))
            engine.step()
        traces.append(trace)
    if monitor is not None:
        monitor.close()
    return traces


if __name__ == "__main__":
    main()
