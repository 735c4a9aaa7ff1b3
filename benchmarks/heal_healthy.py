"""Healthy runs under `--mode heal`, against the same runs by themselves: nothing may be done to them, to the last bit.

    python benchmarks/heal_healthy.py [STEPS [SEED]]     by default 20000 steps in all, over ten kinds of runs

One line per kind; `changed` counts remedies, `different` tensors of weights and losses that are not the same bits.
Exit status 1 where any is.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR

from finitune.gym.data import FIRST_WORD, batches
from finitune.gym.loop import Options, Run, prepare, train
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import tiny
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.watch import watch
from finitune.recording import Recording

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 201
SMALL: dict[str, Any] = {"hidden": 32, "vocabulary": 128, "seed": SEED}


def data(count: int, rows: int = 4) -> list[dict[str, Any]]:
    return batches(count, rows=rows, length=16, vocabulary=128, seed=SEED)


def adamw(parameters: list[Any]) -> AdamW:
    return AdamW(parameters, lr=1e-3)


def plain(steps: int) -> Run:
    return prepare(tiny("llama", **SMALL), data(steps), adamw)


def momentum_without_clipping(steps: int) -> Run:
    return prepare(tiny("gpt2", **SMALL), data(steps), lambda p: SGD(p, lr=0.1, momentum=0.9), Options(clip=None))


def one_row_at_a_time(steps: int) -> Run:
    """Gradients and losses as noisy as they come."""
    return prepare(tiny("mistral", **SMALL), data(steps, rows=1), adamw)


def warm_up_in_bfloat16(steps: int) -> Run:
    options = Options(
        dtype="bfloat16-autocast", schedule=lambda o: LambdaLR(o, lambda step: min(1.0, (step + 1) / 100))
    )
    return prepare(tiny("qwen2", **SMALL), data(steps), adamw, options)


def restarts(steps: int) -> Run:
    """The rate falls to nearly zero and jumps back, again and again."""
    options = Options(schedule=lambda o: CosineAnnealingWarmRestarts(o, T_0=200, eta_min=1e-6))
    return prepare(tiny("llama", **SMALL), data(steps), lambda p: AdamW(p, lr=3e-3), options)


def accumulation(steps: int) -> Run:
    return prepare(tiny("llama", **SMALL), data(2 * steps), adamw, Options(accumulate=2))


def other_data(steps: int) -> Run:
    """Every quarter of the run the language becomes its mirror image, and back."""
    rows = data(steps)
    for number, batch in enumerate(rows):
        if number // (steps // 4) % 2:
            for key in ("input_ids", "labels"):
                batch[key] = FIRST_WORD + 127 - batch[key]
    return prepare(tiny("llama", **SMALL), rows, lambda p: AdamW(p, lr=3e-3))


def lora(steps: int) -> Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.1)
        model = get_peft_model(tiny("mistral", **SMALL), adapter)
    return prepare(model, data(steps), lambda p: AdamW(p, lr=5e-3))


def float16(steps: int) -> Run:
    """The loss scale grows until a step overflows, and falls back, many times."""
    options = Options(dtype="float16", scaler=lambda: DynamicLossScaler(scale=2.0**16, window=50))
    return prepare(tiny("llama", **SMALL), data(steps), adamw, options)


def float16_autocast(steps: int) -> Run:
    return prepare(tiny("gpt2", **SMALL), data(steps), adamw, Options(dtype="float16-autocast"))


KINDS: tuple[Callable[[int], Run], ...] = (
    plain, momentum_without_clipping, one_row_at_a_time, warm_up_in_bfloat16, restarts, accumulation, other_data, lora,
    float16, float16_autocast,
)  # fmt: skip


def trained(run: Run, directory: Path | None) -> tuple[list[float], list[torch.Tensor], float]:
    """Losses, weights and seconds; with `directory` under heal, recorded there."""
    torch.manual_seed(SEED)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(float16_on_cpu())
        if directory is not None:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            stack.enter_context(watch(run.model, run.optimizer, run_dir=directory, mode="heal"))
        losses = [step.loss for step in train(run)]
    return losses, [p.detach() for p in run.model.parameters()], time.perf_counter() - began


def main() -> int:
    torch.set_num_threads(1)
    each = int(sys.argv[1] if len(sys.argv) > 1 else 20_000) // len(KINDS)
    total = [0, 0, 0]
    print(f"{'healthy run':<28}{'steps':>8}{'changed':>9}{'different':>11}{'incidents':>11}{'seconds':>9}{'alone':>8}")
    for kind in KINDS:
        losses, weights, alone = trained(kind(each), None)
        with tempfile.TemporaryDirectory() as directory:
            seen, watched, seconds = trained(kind(each), Path(directory) / "run")
            recording = Recording.load(Path(directory) / "run")
        changed = sum(event["state"] != "advice" for event in recording.events("remedy"))
        incidents = sum(event["level"] == "incident" for event in recording.events("incident"))
        different = sum(a != b for a, b in zip(losses, seen, strict=True))
        different += sum(not torch.equal(a, b) for a, b in zip(weights, watched, strict=True))
        name = kind.__name__.replace("_", " ")
        print(
            f"{name:<28}{len(seen):>8,}{changed:>9}{different:>11}{incidents:>11}{seconds:>9.0f}{alone:>8.0f}",
            flush=True,
        )
        total = [total[0] + len(seen), total[1] + changed, total[2] + different]
    print(
        f"\n{total[0]:,} healthy steps under heal: {total[1]} changed, {total[2]} losses or tensors not the same bits"
    )
    return int(any(total[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
