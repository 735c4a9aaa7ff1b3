"""HF Trainer."""

from __future__ import annotations

import transformers
from _scenario import Scenario, main
from _transformers import InOrder, all_rows, arguments, model, stacked, train

VARIANTS = ("fp32", "bf16")
NEEDS = ("transformers", "accelerate")
LINE = ("fp32",)
TRACKER = ("fp32",)
REASONS: dict[str, str] = {}


class Trainer(InOrder, transformers.Trainer):
    pass


def run(scenario: Scenario) -> None:
    options = transformers.TrainingArguments(
        **arguments(scenario, tracked=scenario.variant in TRACKER), bf16=scenario.variant == "bf16"
    )
    rows = all_rows(scenario)
    train(scenario, Trainer(model=model(scenario), args=options, train_dataset=rows, data_collator=stacked))


if __name__ == "__main__":
    main(run)
