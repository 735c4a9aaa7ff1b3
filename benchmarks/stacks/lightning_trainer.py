"""Lightning's Trainer with its own clipping, loggers and checkpoints. On a CPU `16-mixed` is bfloat16."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from _scenario import Scenario, TinyLM, main
from _trackers import tensorboard
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

VARIANTS = ("32-true", "16-mixed")
NEEDS = ("lightning",)
TRACKER = ("32-true",)


class Module(pl.LightningModule):
    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self.scenario = scenario
        self.model = TinyLM()
        scenario.plant(self.model)

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        loss = self.scenario.loss(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Diary(pl.Callback):
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.scenario.shows(trainer.global_step, loss=trainer.callback_metrics["train_loss"].item())
        self.scenario.stepped(trainer.global_step, module, trainer.optimizers[0])


class Rest(torch.utils.data.Sampler):
    """In order; Lightning itself skips what a resumed run has seen."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(range(self.rows))

    def __len__(self) -> int:
        return self.rows


def run(scenario: Scenario) -> None:
    batches = scenario.batches()
    data = TensorDataset(*(torch.cat([batch[key] for batch in batches]) for key in ("input_ids", "labels")))
    callbacks: list[Any] = [Diary(scenario)]
    if scenario.door == "line":
        from finitune.integrations import LightningCallback

        callbacks.append(LightningCallback(run_dir=scenario.run_dir))
    loggers: list[Any] = [CSVLogger(scenario.directory)]
    boards = _tensorboard(scenario)
    trainer = pl.Trainer(
        accelerator="cpu", precision=scenario.variant, max_steps=scenario.until, default_root_dir=scenario.directory,
        logger=[*loggers, *boards], log_every_n_steps=1, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, gradient_clip_val=1.0, callbacks=callbacks,
    )  # fmt: skip
    file = scenario.directory / "last.ckpt"
    loader = DataLoader(data, batch_size=4, sampler=Rest(len(data)))
    trainer.fit(Module(scenario), loader, ckpt_path=str(file) if scenario.resume else None)
    trainer.save_checkpoint(file)
    if boards:
        scenario.more["tracker"] = {"tensorboard": tensorboard(scenario.directory / "board")}
    scenario.finish([file])


def _tensorboard(scenario: Scenario) -> list[Any]:
    try:
        from lightning.pytorch.loggers import TensorBoardLogger

        return [TensorBoardLogger(scenario.directory / "board")]
    except ModuleNotFoundError:
        return []


if __name__ == "__main__":
    main(run)
