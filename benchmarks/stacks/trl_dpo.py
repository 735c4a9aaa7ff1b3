"""TRL DPOTrainer."""

from __future__ import annotations

from _scenario import Scenario, main
from _transformers import InOrder, SpoiltLoss, arguments, saved, sentence, train
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

VARIANTS = ("bf16",)
NEEDS = ("trl",)
REASONS = {
    "labels-ignored": "a preference has no labels that could be ignored",
    "origin": "the loss is made of terms that its graph does not keep (log-probabilities of the reference)",
}


class Trainer(SpoiltLoss, InOrder, DPOTrainer):
    pass


def run(scenario: Scenario) -> None:
    pairs = [
        {"prompt": sentence(ids[:4]), "chosen": " " + sentence(ids[4:8]), "rejected": " " + sentence(ids[8:])}
        for batch in scenario.batches()
        for ids in batch["input_ids"]
    ]
    place, words = saved(scenario.directory / "model")
    trainer = Trainer(
        model=place,
        args=DPOConfig(**arguments(scenario)),
        train_dataset=Dataset.from_list(pairs),
        processing_class=words,
    )
    trainer.scenario = scenario
    scenario.plant(trainer.model)
    train(scenario, trainer)


if __name__ == "__main__":
    main(run)
