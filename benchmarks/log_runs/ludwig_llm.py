"""Ludwig fine-tunes a language model, in the environment that `make .venv-ludwig/.made` makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ludwig.trainers.trainer  # noqa: F401
import pandas as pd
import transformers
import yaml
from _kinds import truth, world
from _run import Run, alone, main, repeated
from _world import IGNORED, PAD, VOCABULARY, World
from ludwig.api import LudwigModel
from ludwig.callbacks import Callback
from tokenizers import Tokenizer, models, pre_tokenizers

from finitune.gym.models import tiny

FRAMEWORK = "Ludwig"
PYTHON = (".venv-ludwig/bin/python", "make .venv-ludwig/.made")
RUNS = [
    *repeated(2, "high-rate", ("fp32",)),
    *repeated(2, "flipped-bit", ("fp32",)),
    # healthy
    *repeated(8, "steady", ("fp32",)),
    *repeated(2, "lora", ("fp32",)),
    *repeated(2, "accumulated", ("fp32",)),
    *repeated(2, "spike", ("fp32",)),
    *repeated(2, "evaluated", ("fp32",)),
    *repeated(2, "crashed", ("fp32",)),
]


class FullDisk(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch_end(self, _trainer: Any, progress_tracker: Any, *_: Any, **__: Any) -> None:
        if progress_tracker.steps == self.step:
            raise OSError(28, "No space left on device")


def make(run: Run, place: Path) -> None:
    alone()
    own = world(run, place)
    if own.model.config.model_type == "qwen2":  # Ludwig's padding makes it NaN: not one of these faults
        own = replace(own, model=tiny("llama", seed=run.seed))
    tokenizer().save_pretrained("model")
    own.model.save_pretrained("model")
    settings = settings_of(own)
    (place / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    for attempt in range(2 if own.crash else 1):
        callbacks: list[Any] = [FullDisk(own.steps // 2)] if own.crash and not attempt else []
        model = LudwigModel(settings, callbacks=callbacks, logging_level=20)
        try:
            model.train(
                training_set=table(own), output_directory=f"results{attempt}", skip_save_processed_input=True,
                random_seed=run.seed, skip_save_model=True, skip_save_progress=True,
                **({"validation_set": table(own, own.evaluation)} if own.evaluation else {}),
            )  # fmt: skip
        except OSError:
            import traceback

            traceback.print_exc()


def tokenizer() -> Any:
    words = {"<pad>": PAD, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def table(own: World, rows: Any = None) -> pd.DataFrame:
    """One prompt and answer per row."""
    found = []
    for row in rows or own.rows:
        words = [f"w{i}" for i in row["input_ids"]]
        prompt = max(2, sum(label == IGNORED for label in row["labels"]))
        found.append({"prompt": " ".join(words[:prompt]), "output": " ".join(words[prompt:])})
    return pd.DataFrame(found)


def settings_of(own: World) -> dict[str, Any]:
    optimizer = {"type": "adamw"}
    longest = {"preprocessing": {"max_sequence_length": 32}}
    settings: dict[str, Any] = {
        "model_type": "llm",
        "base_model": "model",
        "input_features": [{"name": "prompt", "type": "text", **longest}],
        "output_features": [{"name": "output", "type": "text", **longest}],
        "preprocessing": {"global_max_sequence_length": 32},
        "trainer": {
            "type": "finetune", "batch_size": own.batch, "gradient_accumulation_steps": own.accumulate,
            "train_steps": own.steps, "learning_rate": min(1.0, own.rate), "optimizer": optimizer,
            "learning_rate_scheduler": {"warmup_fraction": 0.1}, "should_shuffle": False,
            "steps_per_checkpoint": own.steps, "skip_all_evaluation": not own.evaluation,
        },
        "backend": {"type": "local"},
    }  # fmt: skip
    if own.adapter:
        settings["adapter"] = {"type": "lora", "r": own.adapter["r"], "alpha": own.adapter["lora_alpha"]}
    return settings


if __name__ == "__main__":
    main(RUNS, make, truth)
