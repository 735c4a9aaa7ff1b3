"""TRL GRPOTrainer: it samples its own completions, so the random numbers decide what is learnt."""

from __future__ import annotations

from typing import Any

from _scenario import Scenario, main
from _transformers import SpoiltLoss, arguments, saved, sentence, train
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

VARIANTS = ("bf16",)
NEEDS = ("trl",)
REASONS = {
    "labels-ignored": "there are no labels: the trainer samples its completions",
    "origin": "the loss is made of terms that its graph does not keep (log-probabilities of the old policy)",
}


class Trainer(SpoiltLoss, GRPOTrainer):
    pass


def reward(completions: list[str], **_: Any) -> list[float]:
    """More different words are better."""
    return [float(len(set(text.split()))) + 0.01 * len(text) for text in completions]


def run(scenario: Scenario) -> None:
    prompts = [{"prompt": sentence(ids[:6])} for batch in scenario.batches() for ids in batch["input_ids"][:2]]
    place, words = saved(scenario.directory / "model")
    options = GRPOConfig(
        **arguments(scenario), num_generations=2, max_completion_length=6, shuffle_dataset=False, steps_per_generation=1
    )
    trainer = Trainer(
        model=place,
        reward_funcs=reward,
        args=options,
        train_dataset=Dataset.from_list(prompts),
        processing_class=words,
    )
    trainer.scenario = scenario
    scenario.plant(trainer.model)
    train(scenario, trainer)


if __name__ == "__main__":
    main(run)
