"""TRL: SFTTrainer on prompts and completions with its defaults; DPOTrainer and GRPOTrainer as healthy runs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import transformers
from _kinds import truth, world
from _run import Run, main, repeated
from _trainer import InOrder, begin, launcher, settings, train, write_config
from _world import IGNORED, PAD, VOCABULARY, Row, World, adapted
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

FRAMEWORK = "TRL"
NEEDS = ("trl",)
MIXED = ("bf16", "fp32", "fp16")
RUNS = [
    *repeated(2, "all-ignored", ("bf16",)),
    *repeated(2, "all-ignored", ("bf16",), variant="tokenised"),
    *repeated(2, "flipped-bit", ("bf16",)),
    *repeated(8, "overflowing-channels", ("fp16",)),
    *repeated(2, "high-rate", ("bf16",)),
    *repeated(4, "half-weights-scaled", ("fp16",)),
    *repeated(2, "half-weights", ("fp32",)),
    *repeated(2, "token-outside", ("bf16",)),
    # healthy
    *repeated(6, "steady", MIXED),
    *repeated(2, "steady", ("bf16",), form="state"),
    *repeated(2, "steady", ("bf16",), form="events"),
    *repeated(4, "lora", ("bf16", "fp16")),
    *repeated(2, "accumulated", ("bf16",)),
    *repeated(4, "settles", ("fp16",)),
    *repeated(2, "overflows-now-and-then", ("fp16",)),
    *repeated(2, "spike", ("bf16",)),
    *repeated(2, "shift", ("bf16",)),
    *repeated(2, "memorised", ("bf16",)),
    *repeated(2, "evaluated", ("bf16",)),
    *repeated(2, "resumed", ("bf16",)),
    *repeated(2, "crashed", ("bf16",)),
    *repeated(2, "steady", ("fp32",), variant="dpo"),
    *repeated(2, "steady", ("bf16",), variant="grpo"),
]


class Trainer(InOrder, SFTTrainer):
    pass


def tokenizer() -> Any:
    """A word for each id, and a few that were added."""
    words = {"<pad>": PAD, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY + 3)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def sentence(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids if i > 2)


def told(row: Row) -> dict[str, str]:
    """A row as prompt and completion; a row without a target is one whose prompt fills the context."""
    prompt = sum(label == IGNORED for label in row["labels"])
    if prompt == len(row["labels"]):
        return {"prompt": sentence(row["input_ids"]) + " ", "completion": sentence(row["input_ids"][:4])}
    return {
        "prompt": sentence(row["input_ids"][: prompt or 2]) + " ",
        "completion": sentence(row["input_ids"][prompt or 2 :]),
    }


def make(run: Run, place: Path) -> None:
    begin(run)
    own = world(run, place)
    given = settings(run, own)
    given["bf16"] = run.precision == "bf16"
    if not run.variant:
        given |= {"max_length": 24, "completion_only_loss": True}
    write_config(run, own, given, place, command=launcher(run, "sft.py"))
    train(run, own, place, functools.partial({"dpo": dpo, "grpo": grpo}.get(run.variant, sft), run, given))


def more(run: Run) -> dict[str, Any]:
    return {"report_to": "tensorboard" if run.form == "events" else "none", "dataloader_pin_memory": False}


def sft(run: Run, given: dict[str, Any], of: World) -> Any:
    model = adapted(world(run, Path())) if of.resume else adapted(of)
    if run.variant == "tokenised":  # by a script of the user's own, and collated by it
        return Trainer(
            model=model,
            args=SFTConfig(**given, **more(run), dataset_kwargs={"skip_prepare_dataset": True}),
            train_dataset=Dataset.from_list(of.rows), data_collator=of.collate, processing_class=tokenizer(),
        )  # fmt: skip
    return Trainer(
        model=model,
        args=SFTConfig(**given, **more(run)),
        train_dataset=Dataset.from_list([told(row) for row in of.rows]),
        eval_dataset=Dataset.from_list([told(row) for row in of.evaluation]) if of.evaluation else None,
        processing_class=tokenizer(),
    )


def dpo(run: Run, given: dict[str, Any], of: World) -> Any:
    pairs = [
        {"prompt": sentence(row["input_ids"][:6]), "chosen": sentence(row["input_ids"][6:12]), "rejected": "w9 w9"}
        for row in of.rows
    ]
    tokenizer().save_pretrained("model")
    of.model.save_pretrained("model")
    return DPOTrainer(
        model="model", args=DPOConfig(**given, **more(run)), train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )  # fmt: skip


def grpo(run: Run, given: dict[str, Any], of: World) -> Any:
    """Alike completions have no advantage, so the loss is 0 in earnest now and then."""

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(set(text.split()))) for text in completions]

    prompts = [{"prompt": sentence(row["input_ids"][:6])} for row in of.rows[:48]]
    tokenizer().save_pretrained("model")
    of.model.save_pretrained("model")
    options = GRPOConfig(**given, **more(run), num_generations=2, max_completion_length=6)
    return GRPOTrainer(
        model="model", reward_funcs=reward, args=options, train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer(),
    )  # fmt: skip


if __name__ == "__main__":
    main(RUNS, make, truth)
