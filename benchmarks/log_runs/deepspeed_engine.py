"""DeepSpeed engines in every dtype and stage, in one process and in two, and HF Trainer over DeepSpeed."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for _name, _value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}.items():
    os.environ.setdefault(_name, str(_value))

import deepspeed  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from _kinds import truth, world  # noqa: E402
from _run import Run, main, repeated  # noqa: E402
from _trainer import InOrder, settings, train, write_config  # noqa: E402
from _world import World, adapted  # noqa: E402

FRAMEWORK = "DeepSpeed"
NEEDS = ("deepspeed",)
RUNS = [
    *repeated(4, "untrained-token", ("fp16",), variant="zero2"),
    *repeated(2, "untrained-token", ("fp16",), variant="zero1", ranks=2),
    *repeated(4, "untrained-token", ("fp16",), variant="trainer"),
    *repeated(6, "overflowing-channels", ("fp16",), variant="zero2"),
    *repeated(4, "overflowing-channels", ("fp16",), variant="trainer"),
    *repeated(2, "overflowing-channels", ("fp16",), variant="zero1", ranks=2),
    *repeated(2, "all-ignored", ("bf16",), variant="zero2"),
    *repeated(2, "flipped-bit", ("bf16",), variant="zero1"),
    *repeated(2, "high-rate", ("bf16",), variant="zero2"),
    *repeated(2, "token-outside", ("bf16",), variant="zero2", ranks=2),
    *repeated(4, "two-configs", ("bf16",), variant="trainer"),
    # healthy
    *repeated(4, "steady", ("fp16", "bf16"), variant="zero2"),
    *repeated(4, "steady", ("bf16", "fp16"), variant="trainer"),
    *repeated(2, "steady", ("fp16",), variant="zero0"),
    *repeated(2, "steady", ("bf16",), variant="zero3"),
    *repeated(2, "steady", ("fp16",), variant="zero1", ranks=2),
    *repeated(8, "settles", ("fp16",), variant="zero2"),
    *repeated(4, "settles", ("fp16",), variant="trainer"),
    *repeated(2, "settles", ("fp16",), variant="zero1", ranks=2),
    *repeated(4, "overflows-now-and-then", ("fp16",), variant="zero2"),
    *repeated(2, "accumulated", ("fp16",), variant="zero2"),
    *repeated(2, "spike", ("bf16",), variant="zero2"),
    *repeated(2, "shift", ("fp16",), variant="zero2"),
    *repeated(2, "crashed", ("fp16",), variant="zero2"),
    *repeated(2, "rough-start", ("bf16",), variant="zero2"),
]


class Trainer(InOrder, transformers.Trainer):
    pass


def make(run: Run, place: Path) -> None:
    # The extension for shared memory needs a compiler.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    if run.choice("level").random() < 0.7:  # the level of releases before 0.17, and of many scripts since
        deepspeed.utils.logger.setLevel(logging.INFO)
    own = world(run, place)
    if run.variant == "trainer":
        return over_trainer(run, own, place)
    config = engine_config(run, own)
    if int(os.environ["RANK"]) == 0:
        (place / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    deepspeed.init_distributed("gloo")
    for attempt in range(2 if own.crash else 1):
        try:
            loop(run, world(run, Path()) if attempt else own, config, crash=own.crash and not attempt)
        except OSError:
            import traceback

            traceback.print_exc()
    return None


def engine_config(run: Run, own: World) -> dict[str, Any]:
    choice = run.choice("config")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": own.batch,
        "gradient_accumulation_steps": own.accumulate,
        "gradient_clipping": own.clip,
        "steps_per_print": choice.choice((1, 5, 10)),
        "optimizer": {"type": "AdamW", "params": {"lr": own.rate if own.optimizer == "adamw" else 1.0}},
        "scheduler": {"type": "WarmupLR", "params": {
            "warmup_min_lr": 0, "warmup_max_lr": own.rate if own.optimizer == "adamw" else 1.0,
            "warmup_num_steps": max(2, own.warmup), "warmup_type": "linear",
        }},
        "zero_optimization": {"stage": int(run.variant[-1])} if run.variant.startswith("zero") else {"stage": 2},
    }  # fmt: skip
    if run.precision == "bf16":
        config["bf16"] = {"enabled": True}
    if run.precision == "fp16":
        power = int(own.initial_scale).bit_length() - 1
        config["fp16"] = {"enabled": True, "initial_scale_power": power,
                          "loss_scale_window": own.growth if own.growth < 2000 else 1000,
                          "hysteresis": choice.choice((1, 2))}  # fmt: skip
    return config


def loop(run: Run, own: World, config: dict[str, Any], *, crash: bool) -> None:
    model = adapted(own)
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config=config
    )
    rank, ranks = int(os.environ["RANK"]), run.ranks
    rows = own.rows[rank * own.batch :]
    size = own.batch * own.accumulate
    micro = 0
    for begin in range(0, len(rows) - size + 1, size * ranks):
        for at in range(begin, begin + size, own.batch):
            loss = engine(**own.collate(rows[at : at + own.batch])).loss
            engine.backward(loss)
            engine.step()
            micro += 1
        step = micro // own.accumulate
        if step % own.interval == 0 and (rank == 0 or run.seed % 2):
            shown = f"[rank {rank}] " if ranks > 1 else ""
            print(f"{shown}step {step}: loss {loss.item():.4f} lr {engine.get_lr()[0]:.3g}", flush=True)
        if crash and step == own.steps // 2:
            raise OSError(28, "No space left on device")


def over_trainer(run: Run, own: World, place: Path) -> None:
    given = settings(run, own)
    config = engine_config(run, own)
    del config["optimizer"], config["scheduler"]
    config |= {
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    }  # fmt: skip
    if run.kind == "two-configs":
        config["gradient_clipping"] = 2 * own.clip
        config["train_micro_batch_size_per_gpu"] = 2 * own.batch
    (place / "config.deepspeed.json").write_text(json.dumps(config, indent=2) + "\n")
    write_config(run, own, given, place, command="deepspeed --num_gpus 1 finetune.py")

    def trainer(given: dict[str, Any], of: World) -> Any:
        more = {"report_to": "none", "dataloader_pin_memory": False, "deepspeed": config}
        arguments = transformers.TrainingArguments(**given, **more)
        return Trainer(model=adapted(of), args=arguments, train_dataset=of.rows, data_collator=of.collate)

    train(run, own, place, functools.partial(trainer, given))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(RUNS, make, truth)
