"""HF Trainer; also with a log that shows the mean of four steps."""

from __future__ import annotations

import transformers
from _scenario import Scenario, main
from _transformers import InOrder, all_rows, arguments, model, stacked, train

VARIANTS = ("fp32", "bf16", "logging-4")
NEEDS = ("transformers", "accelerate")
TRACKER = ("fp32",)


class Trainer(InOrder, transformers.Trainer):
    pass


def run(scenario: Scenario) -> None:
    options = transformers.TrainingArguments(
        **arguments(scenario, tracked=scenario.variant in TRACKER), bf16=scenario.variant == "bf16"
    )
    options.logging_steps = 4 if scenario.variant == "logging-4" else 1
    rows = all_rows(scenario)
    train(scenario, Trainer(model=model(scenario), args=options, train_dataset=rows, data_collator=stacked))


if __name__ == "__main__":
    main(run)
