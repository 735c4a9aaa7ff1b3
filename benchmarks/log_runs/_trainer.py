"""What the trainers of the transformers family share: arguments, their file, interruptions, and the forms of a log."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from _run import Run, alone
from _world import World, adapted
from torch.utils.data import SequentialSampler

if importlib.util.find_spec("deepspeed"):  # accelerate imports it with the first trainer: once for all runs
    import deepspeed  # noqa: F401

CONFIG_FORMS = ("json", "yaml", "sh")


class InOrder:
    """Mixed into a trainer: the rows come as they lie in the data set."""

    def _get_train_sampler(self, *_args: Any, **_kwargs: Any) -> Any:
        return SequentialSampler(self.train_dataset)  # type: ignore[attr-defined]


class StopsHalfway(transformers.TrainerCallback):
    """The run is ended by its user, or by a full disk."""

    def __init__(self, step: int, *, crash: bool) -> None:
        self.step, self.crash = step, crash

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            if self.crash:
                raise OSError(28, "No space left on device")
            control.should_training_stop = True


def settings(run: Run, world: World) -> dict[str, Any]:
    """The arguments as a user gives them."""
    choice = run.choice("arguments")
    given: dict[str, Any] = {
        "output_dir": "out",
        "per_device_train_batch_size": world.batch,
        "gradient_accumulation_steps": world.accumulate,
        "learning_rate": world.rate,
        "lr_scheduler_type": world.schedule,
        "warmup_steps": world.warmup,
        "max_grad_norm": world.clip,
        "logging_steps": world.interval,
        "save_strategy": "no",
        "disable_tqdm": choice.random() < 0.4,
        "seed": run.seed,
    }
    if choice.random() < 0.5 or world.resume:
        given["max_steps"] = world.steps
    else:
        given["num_train_epochs"] = 1
    if run.precision in ("fp16", "bf16"):
        given[run.precision] = True
    if world.optimizer == "sgd":
        given["optim"] = "sgd"
    if world.evaluation:
        given |= {"eval_strategy": "steps", "eval_steps": max(5, world.steps // 4)}
    if world.resume:
        given |= {"save_strategy": "steps", "save_steps": world.steps // 2 - 3}
    return given


def write_config(run: Run, world: World, given: dict[str, Any], place: Path, *, command: str) -> None:
    """The arguments in one of the forms in which people keep them, with what their script adds for the model."""
    own = {"model_name_or_path": "model", **given}
    own["torch_dtype"] = world.dtype or "float32"
    if world.adapter:
        own |= {"use_peft": True, "lora_r": world.adapter["r"], "lora_alpha": world.adapter["lora_alpha"]}
    if world.checkpointing:
        own["gradient_checkpointing"] = True
    form = run.choice("config").choice(CONFIG_FORMS)
    if form == "json":
        (place / "config.json").write_text(json.dumps(own, indent=2) + "\n")
    elif form == "yaml":
        (place / "config.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
    else:
        words = []
        for key, value in own.items():
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            words.append(f"    --{key} '{text}'" if isinstance(value, dict) else f"    --{key} {text}")
        (place / "config.sh").write_text("#!/bin/bash\n\n" + " \\\n".join([command, *words]) + "\n")


def launcher(run: Run, script: str) -> str:
    return f"torchrun --nproc_per_node {run.ranks} {script}" if run.ranks > 1 else f"python {script}"


def train(run: Run, world: World, place: Path, trainer: Callable[[World], Any]) -> None:
    """Train, in two attempts where the run is resumed, and keep the file of the log that the run asks for."""
    if world.resume:
        first = _ready(world, trainer)
        step = world.steps // 2 + run.choice("stop").choice((0, 4))
        first.add_callback(StopsHalfway(step, crash=world.crash))
        try:
            first.train()
        except OSError:
            import traceback

            traceback.print_exc()
    last = _ready(world, trainer)
    last.train(resume_from_checkpoint=True if world.resume else None)
    if run.form == "state":
        last.save_state()
        shutil.copy("out/trainer_state.json", place)
    elif run.form == "events":
        event = next(Path().rglob("events.out.tfevents.*"))
        shutil.copy(event, place / "events.out.tfevents.0")


def _ready(world: World, trainer: Callable[[World], Any]) -> Any:
    made = trainer(world)
    scaler = made.accelerator.scaler
    if scaler is not None:
        made.accelerator.scaler = torch.amp.GradScaler(
            "cpu", init_scale=world.initial_scale, growth_interval=world.growth
        )
    return made


def begin(run: Run) -> None:
    if run.ranks == 1:
        alone()
    if run.choice("verbosity").random() < 0.3:
        transformers.logging.set_verbosity_info()


__all__ = ["InOrder", "adapted", "begin", "launcher", "settings", "train", "write_config"]
