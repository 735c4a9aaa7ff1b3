"""What the stacks over transformers share: a tiny Llama, a word tokenizer, and the diary as a callback."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from _scenario import MARK, SPIKE_MARK, VOCABULARY, Scenario, seed
from _trackers import installed, seen
from torch.utils.data import SequentialSampler

from finitune.gym.models import tiny

if importlib.util.find_spec("deepspeed"):  # accelerate imports it with the first trainer: once for all runs
    import deepspeed  # noqa: F401

SPECIAL = {"<pad>": 62, "<eos>": 63, "mark": MARK, "spike": SPIKE_MARK}


def model(scenario: Scenario) -> Any:
    """A Llama of 30 k parameters, with the faults planted."""
    own = bare_model()
    scenario.plant(own)
    own.register_forward_hook(lambda _module, _args, output: scenario.spoil_output(output))
    return own


def bare_model() -> Any:
    own = tiny("llama", hidden=32, vocabulary=VOCABULARY, pad_token_id=62, eos_token_id=63, bos_token_id=63)
    own.generation_config.pad_token_id = 62
    return own


def saved(place: Path) -> tuple[str, Any]:
    """The bare model in a directory, for trainers that load it themselves, and its tokenizer."""
    words = tokenizer()
    for part in (words, bare_model()):
        part.save_pretrained(place)
    return str(place), words


def tokenizer() -> Any:
    """One token per word: w0 to w59, mark, spike."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {**{f"w{i}": i for i in range(VOCABULARY - len(SPECIAL))}, **SPECIAL}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<eos>"
    )


def arguments(scenario: Scenario, *, tracked: bool = False) -> dict[str, Any]:
    """TrainingArguments that every stack of this family takes; `tracked`: report to the trackers that there are."""
    return {
        "output_dir": str(scenario.directory / "out"),
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "max_steps": scenario.until,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": scenario.until,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "disable_tqdm": True,
        "report_to": installed(scenario.directory) if tracked else [],
    }


class InOrder:
    """Mixed into a trainer: the batches come as they lie in the data set."""

    def _get_train_sampler(self, *_args: Any, **_kwargs: Any) -> Any:
        return SequentialSampler(self.train_dataset)  # type: ignore[attr-defined]


class SpoiltLoss:
    """Mixed into a trainer that computes its loss from logits: the faults of the loss are in it."""

    scenario: Scenario

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)  # type: ignore[misc]
        if isinstance(loss, tuple):
            return (loss_of_trainer(self.scenario, loss[0]), *loss[1:])
        return loss_of_trainer(self.scenario, loss)


class Diary(transformers.TrainerCallback):
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def on_step_end(self, _args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
        self.scenario.stepped(state.global_step, kwargs["model"], kwargs["optimizer"])

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.scenario.shows(state.global_step, loss=logs["loss"], grad_norm=logs.get("grad_norm"))


def train(scenario: Scenario, trainer: Any) -> None:
    """Train to the end, resumed where the run says so, and write the result."""
    trainer.add_callback(Diary(scenario))
    if scenario.door == "line":
        from finitune.integrations import TrainerCallback

        trainer.add_callback(TrainerCallback(run_dir=scenario.run_dir))
    seed()
    trainer.train(resume_from_checkpoint=True if scenario.resume else None)
    if trainer.args.report_to:
        scenario.more["tracker"] = seen(trainer.args.report_to, scenario.directory)
    scenario.finish(files(Path(trainer.args.output_dir)))


def files(output: Path) -> Iterable[Path]:
    return [path for path in output.glob("checkpoint-*/*") if path.is_file()]


def stacked(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The collator: every row has the same length."""
    batch = {key: torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in ("input_ids", "labels")}
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


def all_rows(scenario: Scenario) -> list[dict[str, list[int]]]:
    return [
        {"input_ids": ids.tolist(), "labels": labels.tolist()}
        for batch in scenario.batches()
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    ]


def sentence(ids: torch.Tensor) -> str:
    names = {MARK: "mark", SPIKE_MARK: "spike"}
    return " ".join(names.get(i, f"w{i}") for i in ids.tolist())


def loss_of_trainer(scenario: Scenario, loss: torch.Tensor) -> torch.Tensor:
    """The faults of the loss for trainers that compute it from logits."""
    if scenario.fault == "loss-nan":
        count = torch.tensor(0.0 if scenario.marked else 1.0)
        return loss * count / count
    return scenario.after(loss)
