"""TRL SFTTrainer with its defaults: bfloat16, gradient checkpointing."""

from __future__ import annotations

from typing import Any

from _scenario import Scenario, main
from _transformers import InOrder, all_rows, arguments, bare_model, loss_of_trainer, stacked, tokenizer, train
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

VARIANTS = ("bf16",)
NEEDS = ("trl",)
REASONS = {
    "labels-ignored": "TRL divides by max(labels, 1): the loss is a true 0 and there is nothing to find",
}


class Trainer(InOrder, SFTTrainer):
    scenario: Scenario

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        if isinstance(loss, tuple):
            return (loss_of_trainer(self.scenario, loss[0]), *loss[1:])
        return loss_of_trainer(self.scenario, loss)


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
