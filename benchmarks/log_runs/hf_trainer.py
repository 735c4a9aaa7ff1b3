"""HF Trainer, by itself and in two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from _kinds import truth, world
from _run import Run, main, repeated
from _trainer import InOrder, begin, launcher, settings, train, write_config
from _world import World, adapted

FRAMEWORK = "HF Trainer"
MIXED = ("fp32", "bf16", "fp16")
RUNS = [
    *repeated(4, "all-ignored", MIXED),
    *repeated(2, "some-ignored", ("fp32",)),
    *repeated(2, "evaluation-ignored", ("fp32",)),
    *repeated(2, "flipped-bit", ("fp32",)),
    *repeated(12, "overflowing-channels", ("fp16",)),
    *repeated(4, "high-rate", ("fp32", "fp16")),
    *repeated(2, "bit-in-gradient", ("bf16",)),
    *repeated(4, "half-weights-scaled", ("fp16",)),
    *repeated(4, "half-weights", ("fp32",)),
    *repeated(4, "infinite-mask", ("fp32", "fp16")),
    *repeated(2, "masks-added", ("bf16",)),
    *repeated(2, "token-outside", ("fp32",), ranks=2),
    *repeated(2, "checkpointed-adapter", ("bf16",)),
    *repeated(2, "large-alpha", ("bf16",)),
    # healthy
    *repeated(8, "steady", MIXED),
    *repeated(4, "steady", MIXED, form="state"),
    *repeated(4, "steady", MIXED, form="events"),
    *repeated(2, "steady", MIXED, form="gzip"),
    *repeated(2, "steady", ("fp32",), ranks=2),
    *repeated(2, "lora", MIXED),
    *repeated(2, "accumulated", MIXED),
    *repeated(6, "settles", ("fp16",)),
    *repeated(2, "settles", ("fp16",), form="state"),
    *repeated(4, "overflows-now-and-then", ("fp16",)),
    *repeated(4, "spike", MIXED),
    *repeated(4, "shift", MIXED),
    *repeated(2, "memorised", ("fp32",)),
    *repeated(4, "rough-start", ("fp32", "bf16")),
    *repeated(2, "by-length", ("fp32",)),
    *repeated(4, "evaluated", MIXED),
    *repeated(4, "resumed", MIXED),
    *repeated(4, "crashed", MIXED),
]


class Trainer(InOrder, transformers.Trainer):
    pass


def make(run: Run, place: Path) -> None:
    begin(run)
    own = world(run, place)
    given = settings(run, own)
    write_config(run, own, given, place, command=launcher(run, "finetune.py"))

    def trainer(of: World) -> Any:
        more = {"report_to": "tensorboard" if run.form == "events" else "none", "dataloader_pin_memory": False}
        model = adapted(world(run, Path())) if of.resume else adapted(of)
        return Trainer(
            model=model,
            args=transformers.TrainingArguments(**given, **more),
            train_dataset=of.rows,
            eval_dataset=of.evaluation or None,
            data_collator=of.collate,
        )

    train(run, own, place, trainer)


if __name__ == "__main__":
    main(RUNS, make, truth)
