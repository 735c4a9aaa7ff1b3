"""Loops as people write them: in float32, under autocast with a GradScaler, in pure float16 with master weights."""

from __future__ import annotations

import csv
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from _kinds import truth, world
from _run import Run, alone, main, repeated
from _world import World, adapted
from tqdm import tqdm

from finitune.gym.float16_optimizer import Float16Optimizer
from finitune.gym.loss_scale import DynamicLossScaler

FRAMEWORK = "plain loop"
MIXED = ("fp32", "bf16", "fp16")
RUNS = [
    *repeated(2, "all-ignored", ("fp32",)),
    *repeated(2, "some-ignored", ("bf16",)),
    *repeated(2, "evaluation-ignored", ("fp32",)),
    *repeated(2, "flipped-bit", ("fp32",)),
    *repeated(4, "overflowing-channels", ("fp16", "masters")),
    *repeated(2, "untrained-token", ("masters",)),
    *repeated(4, "high-rate", ("fp32", "fp16")),
    *repeated(2, "bit-in-activation", ("fp32",)),
    *repeated(2, "half-weights-scaled", ("fp16",)),
    *repeated(2, "half-weights", ("fp32",)),
    *repeated(4, "infinite-mask", ("fp32", "bf16")),
    *repeated(2, "token-outside", ("fp32",)),
    *repeated(2, "checkpointed-adapter", ("bf16",)),
    *repeated(4, "nan-saved", ("fp32",)),
    # healthy
    *repeated(6, "steady", MIXED),
    *repeated(4, "steady", ("fp32", "fp16"), form="csv"),
    *repeated(2, "steady", ("fp32",), form="events"),
    *repeated(2, "steady", ("bf16",), form="gzip"),
    *repeated(2, "lora", ("bf16",)),
    *repeated(2, "accumulated", ("fp32",)),
    *repeated(6, "settles", ("fp16", "masters")),
    *repeated(2, "overflows-now-and-then", ("fp16",)),
    *repeated(2, "spike", ("fp32",)),
    *repeated(2, "shift", ("bf16",)),
    *repeated(2, "memorised", ("fp32",)),
    *repeated(4, "rough-start", ("fp32", "bf16")),
    *repeated(2, "evaluated", ("bf16",)),
    *repeated(2, "crashed", ("fp32",)),
]

Say = Callable[[int, dict[str, float]], None]


def make(run: Run, place: Path) -> None:
    alone()
    own = world(run, place)
    write_config(run, own, place)
    say, close = style(run, own.steps, place)
    attempts = 2 if own.crash else 1
    for attempt in range(attempts):
        print(f"Start training: {own.steps} steps, batch size {own.batch}, {run.precision}", flush=True)
        try:
            train(run, world(run, Path()) if attempt else own, say, crash=own.crash and not attempt)
        except OSError:
            import traceback

            traceback.print_exc()
    close()
    if run.kind == "nan-saved":
        generate(own.model)


def train(run: Run, own: World, say: Say, *, crash: bool) -> None:
    model = adapted(own)
    weights = [p for p in model.parameters() if p.requires_grad]

    def make_optimizer(parameters: list[Any]) -> Any:
        if own.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=own.rate)
        return torch.optim.AdamW(parameters, lr=own.rate)

    scaler = torch.amp.GradScaler(
        "cpu", init_scale=own.initial_scale, growth_interval=own.growth, enabled=run.precision == "fp16"
    )
    if run.precision == "masters":
        model.half()
        scale = DynamicLossScaler(scale=own.initial_scale)
        optimizer: Any = Float16Optimizer(weights, make_optimizer, clip=own.clip or None, scaler=scale)
    else:
        optimizer = make_optimizer(weights)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (own.warmup + 1)))
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(run.precision)
    shows = run.choice("shows").choice(("loss", "loss norm", "loss norm scale"))
    model.train()
    total = 0.0
    for step, batches in enumerate(_steps(own), start=1):
        for batch in batches:
            with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
                loss = model(**batch).loss / len(batches)
            if isinstance(optimizer, Float16Optimizer):
                optimizer.backward(loss)
            else:
                scaler.scale(loss).backward()
            total += loss.item() / own.interval
        norm = _update(own, weights, optimizer, scaler)
        warmup.step()
        optimizer.zero_grad()
        seen = {"loss": total}
        if "norm" in shows:
            seen["grad_norm"] = norm
        if "scale" in shows and run.precision in ("fp16", "masters"):
            seen["scale"] = optimizer.loss_scale if run.precision == "masters" else scaler.get_scale()
        seen["lr"] = warmup.get_last_lr()[0]
        if step % own.interval == 0:
            say(step, seen)
            total = 0.0
        if own.evaluation and step % 10 == 0:
            say(step, {"eval_loss": evaluate(model, own)})
        if crash and step == own.steps // 2:
            raise OSError(28, "No space left on device")


def _steps(own: World) -> Iterator[list[Any]]:
    size = own.batch * own.accumulate
    for begin in range(0, own.steps * size, size):
        yield [own.collate(own.rows[at : at + own.batch]) for at in range(begin, begin + size, own.batch)]


def _update(own: World, weights: list[Any], optimizer: Any, scaler: Any) -> float:
    """One step of the optimizer; the L2 norm of the gradient before clipping."""
    if isinstance(optimizer, Float16Optimizer):
        optimizer.step()
        return optimizer.grad_norm
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(weights, own.clip or float("inf")).item()
    scaler.step(optimizer)
    scaler.update()
    return norm


def evaluate(model: Any, own: World) -> float:
    model.eval()
    with torch.no_grad():
        rows = [own.evaluation[i : i + own.batch] for i in range(0, len(own.evaluation), own.batch)]
        losses = [model(**own.collate(batch)).loss.item() for batch in rows]
    model.train()
    return sum(losses) / len(losses)


def generate(model: Any) -> None:
    """Save what was trained, load it, and sample from it."""
    model.save_pretrained("tuned")
    print("Model saved to tuned; a sample of its answers:", flush=True)
    loaded = type(model).from_pretrained("tuned")
    loaded.generate(torch.tensor([[20, 30, 40]]), do_sample=True, max_new_tokens=8)


def style(run: Run, steps: int, place: Path) -> tuple[Say, Callable[[], None]]:
    """One of the ways in which loops tell their numbers."""
    if run.form == "csv":
        return _table(place / "metrics.csv", run)
    if run.form == "events":
        return _board(place)
    name = run.choice("style").choice(("lines", "bar", "logging", "colour", "dict"))
    if name == "bar":
        bar = tqdm(total=steps, desc="Training")

        def on_bar(step: int, seen: dict[str, float]) -> None:
            bar.update(step - bar.n)
            if "eval_loss" in seen:
                tqdm.write(f"step {step}: " + _words(seen))
            else:
                bar.set_postfix(seen)

        return on_bar, bar.close
    if name == "logging":
        log = logging.getLogger("train")
        logging.basicConfig(
            stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
        )
        return lambda step, seen: log.info(
            "step %d | %s", step, " | ".join(f"{k} {v:.4f}" for k, v in seen.items())
        ), lambda: None
    if name == "colour":
        return lambda step, seen: print(
            f"\x1b[32mstep {step}\x1b[0m \x1b[1m{_words(seen)}\x1b[0m", flush=True
        ), lambda: None
    if name == "dict":
        return lambda step, seen: print(
            {"step": step, **{k: round(v, 6) for k, v in seen.items()}}, flush=True
        ), lambda: None
    return lambda step, seen: print(f"step {step}: {_words(seen)}", flush=True), lambda: None


def _words(seen: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.5g}" for key, value in seen.items())


def _table(path: Path, run: Run) -> tuple[Say, Callable[[], None]]:
    file = path.open("w", newline="")
    writer = csv.writer(file)
    own = ("loss", "lr") if run.seed % 2 else ("loss", "grad_norm", "lr")
    writer.writerow(("step", *own))
    return lambda step, seen: writer.writerow((step, *(seen.get(key, "") for key in own))), file.close


def _board(place: Path) -> tuple[Say, Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter("board")

    def say(step: int, seen: dict[str, float]) -> None:
        for key, value in seen.items():
            board.add_scalar(f"train/{key}", value, step)

    def close() -> None:
        board.close()
        shutil.copy(next(Path("board").glob("events.*")), place / "events.out.tfevents.0")

    return say, close


def write_config(run: Run, own: World, place: Path) -> None:
    """The script that starts the loop."""
    flags = {
        "model_name_or_path": "model",
        "per_device_train_batch_size": own.batch, "gradient_accumulation_steps": own.accumulate,
        "learning_rate": own.rate, "warmup_steps": own.warmup, "optimizer": own.optimizer, "max_grad_norm": own.clip,
        "max_steps": own.steps, "torch_dtype": own.dtype or ("float16" if run.precision == "masters" else "float32"),
    }  # fmt: skip
    if own.adapter:
        flags |= {"lora_r": own.adapter["r"], "lora_alpha": own.adapter["lora_alpha"]}
    if own.checkpointing:
        flags["gradient_checkpointing"] = True
    words = [f"--{key} {value}" for key, value in flags.items()]
    words += {"fp16": ["--fp16"], "bf16": ["--bf16"], "masters": ["--fp16"]}.get(run.precision, [])
    (place / "config.sh").write_text("#!/bin/bash\n\n" + " \\\n    ".join(["python train.py", *words]) + "\n")


if __name__ == "__main__":
    main(RUNS, make, truth)
