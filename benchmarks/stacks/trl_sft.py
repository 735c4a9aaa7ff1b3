"""TRL SFTTrainer with its defaults: bfloat16, gradient checkpointing."""

from __future__ import annotations

from _scenario import Scenario, main
from _transformers import InOrder, SpoiltLoss, all_rows, arguments, bare_model, stacked, tokenizer, train
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

VARIANTS = ("bf16",)
NEEDS = ("trl",)
REASONS = {
    "labels-ignored": "TRL divides by max(labels, 1): the loss is a true 0 and there is nothing to find",
}


class Trainer(SpoiltLoss, InOrder, SFTTrainer):
    pass


def run(scenario: Scenario) -> None:
    options = SFTConfig(**arguments(scenario), dataset_kwargs={"skip_prepare_dataset": True}, max_length=None)
    data = Dataset.from_list(all_rows(scenario))
    model = bare_model()
    scenario.plant(model)
    trainer = Trainer(
        model=model, args=options, train_dataset=data, data_collator=stacked, processing_class=tokenizer()
    )
    trainer.scenario = scenario
    train(scenario, trainer)


if __name__ == "__main__":
    main(run)
