"""Lightning: its Trainer with its progress bars and loggers. 16-mixed gets the GradScaler that a GPU would have."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import yaml
from _kinds import truth, world
from _run import Run, alone, main, repeated
from _world import World, adapted
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

FRAMEWORK = "Lightning"
NEEDS = ("lightning", "tensorboard")
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed", "half": "16-true"}
MIXED = ("fp32", "bf16", "fp16")
RUNS = [
    *repeated(2, "all-ignored", ("fp32",)),
    *repeated(2, "evaluation-ignored", ("bf16",)),
    *repeated(4, "overflowing-channels", ("fp16",)),
    *repeated(2, "high-rate", ("fp32",)),
    *repeated(2, "high-rate", ("fp32",), form="csv"),
    *repeated(2, "half-weights-scaled", ("fp16",)),
    *repeated(4, "half-weights", ("half",)),
    *repeated(2, "infinite-mask", ("bf16",)),
    *repeated(2, "token-outside", ("fp32",)),
    *repeated(2, "checkpointed-adapter", ("bf16",)),
    # healthy
    *repeated(6, "steady", MIXED),
    *repeated(4, "steady", ("fp32", "bf16"), form="csv"),
    *repeated(4, "steady", ("fp32", "fp16"), form="events"),
    *repeated(2, "steady", ("fp32",), form="gzip"),
    *repeated(2, "lora", ("bf16",)),
    *repeated(2, "accumulated", ("fp32",)),
    *repeated(4, "settles", ("fp16",)),
    *repeated(2, "overflows-now-and-then", ("fp16",), form="csv"),
    *repeated(2, "spike", ("fp32",)),
    *repeated(2, "shift", ("bf16",), form="csv"),
    *repeated(2, "memorised", ("fp32",)),
    *repeated(2, "rough-start", ("fp32",)),
    *repeated(2, "evaluated", ("bf16",)),
    *repeated(2, "crashed", ("fp32",)),
]


class Module(pl.LightningModule):
    def __init__(self, run: Run, own: World) -> None:
        super().__init__()
        self.model, self.own = adapted(own), own
        self.norms = run.choice("norms").random() < 0.5

    def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.log("train_loss", loss, prog_bar=True)
        if self.own.crash and self.global_step == self.own.steps // 2:
            raise OSError(28, "No space left on device")
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
        self.log("val_loss", self.model(**batch).loss, prog_bar=True)

    def on_before_optimizer_step(self, _optimizer: Any) -> None:
        if self.norms:
            norms = [p.grad.float().norm() for p in self.parameters() if p.grad is not None]
            self.log("grad_norm", torch.stack(norms).norm(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        weights = [p for p in self.parameters() if p.requires_grad]
        if self.own.optimizer == "sgd":
            return torch.optim.SGD(weights, lr=self.own.rate)
        return torch.optim.AdamW(weights, lr=self.own.rate)


def make(run: Run, place: Path) -> None:
    alone()
    own = world(run, place)
    write_config(run, own, place)
    for attempt in range(2 if own.crash else 1):
        of = own if not attempt else _whole(world(run, Path()))
        try:
            fit(run, of, place)
        except OSError:
            import traceback

            traceback.print_exc()


def _whole(of: World) -> World:
    import dataclasses

    return dataclasses.replace(of, crash=False)


def fit(run: Run, own: World, place: Path) -> None:
    logger: Any = False
    if run.form == "csv":
        logger = CSVLogger("logs")
    elif run.form == "events":
        logger = TensorBoardLogger("logs")
    plugins, precision = [], PRECISIONS[run.precision]
    if run.precision == "fp16":
        scaler = torch.amp.GradScaler("cpu", init_scale=own.initial_scale, growth_interval=own.growth)
        plugins, precision = [MixedPrecision("16-mixed", "cpu", scaler)], None
    if run.choice("bar").random() < 0.25:
        os.environ["FORCE_COLOR"] = os.environ["TTY_COMPATIBLE"] = "1"  # what a terminal shows
        bar: Any = RichProgressBar()
    else:
        bar = TQDMProgressBar(refresh_rate=run.choice("refresh").choice((1, 1, 5)))
    trainer = pl.Trainer(
        callbacks=[bar],
        accelerator="cpu", precision=precision, plugins=plugins or None, max_steps=own.steps, logger=logger,
        log_every_n_steps=own.interval, gradient_clip_val=own.clip or None, accumulate_grad_batches=own.accumulate,
        enable_checkpointing=False, enable_model_summary=run.seed % 3 == 0, num_sanity_val_steps=run.seed % 2,
        val_check_interval=max(4, own.steps // 3) if own.evaluation else None, use_distributed_sampler=False,
    )  # fmt: skip
    loader = DataLoader(own.rows, batch_size=own.batch, collate_fn=own.collate)
    tested = DataLoader(own.evaluation, batch_size=own.batch, collate_fn=own.collate) if own.evaluation else None
    module = Module(run, own)
    if run.precision == "half":
        module = module.float()  # Lightning casts it itself
    trainer.fit(module, loader, tested)
    if run.form == "csv":
        shutil.copy(next(Path("logs").rglob("metrics.csv")), place / "metrics.csv")
    elif run.form == "events":
        shutil.copy(next(Path("logs").rglob("events.*")), place / "events.out.tfevents.0")


def write_config(run: Run, own: World, place: Path) -> None:
    """The file that `LightningCLI` reads."""
    model: dict[str, Any] = {
        "model_name_or_path": "model",
        "learning_rate": own.rate,
        "torch_dtype": own.dtype or "float32",
    }
    if own.adapter:
        model |= {"lora_r": own.adapter["r"], "lora_alpha": own.adapter["lora_alpha"]}
    if own.checkpointing:
        model["gradient_checkpointing"] = True
    trainer = {
        "accelerator": "auto", "devices": 1, "precision": PRECISIONS[run.precision], "max_steps": own.steps,
        "gradient_clip_val": own.clip or None, "accumulate_grad_batches": own.accumulate,
        "log_every_n_steps": own.interval,
    }  # fmt: skip
    optimizer = {
        "class_path": f"torch.optim.{'SGD' if own.optimizer == 'sgd' else 'AdamW'}",
        "init_args": {"lr": own.rate},
    }
    settings = {"seed_everything": run.seed, "trainer": trainer, "model": model, "optimizer": optimizer,
                "data": {"batch_size": own.batch}}  # fmt: skip
    (place / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


if __name__ == "__main__":
    main(RUNS, make, truth)
