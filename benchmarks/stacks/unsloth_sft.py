"""TRL's SFTTrainer as Unsloth rewrites it, on a model of transformers: in float32, on the CPU.

Told that there is no device, Unsloth leaves the trainers alone; what it does to them otherwise is done here as its own
import does it. FastLanguageModel, which needs CUDA, is in tests/integrations/unsloth_program.py.
"""

from __future__ import annotations

import os

os.environ.update(CUDA_VISIBLE_DEVICES="", UNSLOTH_ALLOW_CPU="1", TRITON_INTERPRET="1")

import unsloth  # noqa: F401  # pyright: ignore[reportMissingImports]
from unsloth.models._utils import patch_gradient_accumulation_fix  # pyright: ignore[reportMissingImports]
from unsloth.models.llama import FastLlamaModel  # pyright: ignore[reportMissingImports]
from unsloth.models.rl import PatchFastRL  # pyright: ignore[reportMissingImports]
from unsloth.trainer import _patch_trl_trainer  # pyright: ignore[reportMissingImports]

os.environ["UNSLOTH_ALLOW_CPU"] = "0"
PatchFastRL(FastLanguageModel=FastLlamaModel)
_patch_trl_trainer()


import transformers  # noqa: E402
from _scenario import Scenario, main  # noqa: E402
from _transformers import InOrder, SpoiltLoss, all_rows, arguments, bare_model, stacked, tokenizer, train  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

patch_gradient_accumulation_fix(transformers.Trainer)

VARIANTS = ("fp32",)
PYTHON = (".venv-unsloth/bin/python", "FINITUNE_UNSLOTH_PYTHON", "make .venv-unsloth/.made")
TRACKER = ("fp32",)
REASONS = {
    "labels-ignored": "the loss is divided by max(labels, 1): it is a true 0 and there is nothing to find",
}


class Trainer(SpoiltLoss, InOrder, SFTTrainer):
    pass


def run(scenario: Scenario) -> None:
    options = SFTConfig(
        **arguments(scenario, tracked=True),
        gradient_accumulation_steps=1,  # 2 by default
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )
    model = bare_model()
    scenario.plant(model)
    trainer = Trainer(
        model=model,
        args=options,
        train_dataset=Dataset.from_list(all_rows(scenario)),
        data_collator=stacked,
        processing_class=tokenizer(),
    )
    trainer.scenario = scenario
    train(scenario, trainer)


if __name__ == "__main__":
    main(run)
