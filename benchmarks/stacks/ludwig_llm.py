"""Ludwig fine-tunes a language model, in the environment that `make .venv-ludwig/.made` makes.

Ludwig makes the labels itself. The batch without any is one whose prompts leave no room for the answers: Ludwig cuts
the rows, and ignores what it cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ludwig.trainers.trainer
import pandas as pd
from _scenario import BAD, Scenario, main, seed
from _transformers import loss_of_trainer, saved, sentence
from ludwig.api import LudwigModel
from ludwig.callbacks import Callback

VARIANTS = ("fp32",)
PYTHON = (".venv-ludwig/bin/python", "FINITUNE_LUDWIG_PYTHON", "make .venv-ludwig/.made")
"""Where its Python is, the environment variable that names another, and what makes it."""
LONGEST = 16


class Diary(Callback):
    """Plants the fault once Ludwig has made its model, and writes down every step."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def on_trainer_train_setup(self, trainer: Any, *_: Any) -> None:
        self.scenario.plant(trainer.model.model)
        own = trainer.model.train_loss

        def train_loss(*args: Any, **kwargs: Any) -> Any:
            loss, parts = own(*args, **kwargs)
            return loss_of_trainer(self.scenario, loss), parts

        trainer.model.train_loss = train_loss
        seed()

    def on_batch_end(self, trainer: Any, progress_tracker: Any, *_: Any, **__: Any) -> None:
        self.scenario.stepped(progress_tracker.steps, trainer.model, trainer.optimizer)


class Bar(ludwig.trainers.trainer.LudwigProgressBar):
    """Ludwig's own, read as it is shown."""

    scenario: Scenario

    def set_postfix(self, postfix: Any = None) -> None:
        self.scenario.shows(len(self.scenario.rows) + self.scenario.first, **(postfix or {}))
        super().set_postfix(postfix)


def run(scenario: Scenario) -> None:
    Bar.scenario = scenario
    ludwig.trainers.trainer.LudwigProgressBar = Bar  # type: ignore[misc]
    base = scenario.directory / "base"
    saved(base)
    callbacks: list[Any] = [Diary(scenario)]
    if scenario.door == "line":
        from finitune.integrations import LudwigCallback

        callbacks.append(LudwigCallback(run_dir=scenario.run_dir))
    out = scenario.directory / "results"
    written = out / "api_experiment_run"
    model = LudwigModel(settings(scenario, base), callbacks=callbacks)
    resumed = {"model_resume_path": str(written)} if scenario.resume else {"output_directory": str(out)}
    model.train(training_set=rows(scenario), skip_save_processed_input=True, random_seed=0, **resumed)
    scenario.finish(path for path in written.rglob("*") if path.is_file())


def rows(scenario: Scenario) -> pd.DataFrame:
    """One prompt and answer per row; with `labels-ignored` the prompts of step BAD are as long as a row may be."""
    found = []
    for step, batch in enumerate(scenario.batches(), start=1):
        for ids in batch["input_ids"]:
            words = sentence(ids)
            if scenario.fault == "labels-ignored" and step == BAD:
                found.append({"prompt": f"{words} {words}", "output": "w1"})
            else:
                found.append({"prompt": sentence(ids[:4]), "output": sentence(ids[4:])})
    return pd.DataFrame(found)


def settings(scenario: Scenario, base: Path) -> dict[str, Any]:
    longest = {"preprocessing": {"max_sequence_length": 2 * LONGEST}}
    return {
        "model_type": "llm",
        "base_model": str(base),
        "input_features": [{"name": "prompt", "type": "text", **longest}],
        "output_features": [{"name": "output", "type": "text", **longest}],
        "preprocessing": {"global_max_sequence_length": LONGEST},
        "trainer": {
            "type": "finetune", "batch_size": 4, "train_steps": scenario.until, "should_shuffle": False,
            "learning_rate": 1e-2, "learning_rate_scheduler": {"warmup_fraction": 0.0}, "optimizer": {"type": "adamw"},
            "steps_per_checkpoint": scenario.until, "skip_all_evaluation": True,
        },
        "backend": {"type": "local"},
    }  # fmt: skip


if __name__ == "__main__":
    main(run)
