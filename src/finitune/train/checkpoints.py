"""Checkpoints that are whole or absent: written under another name, read back, summed, and then renamed.

A directory `checkpoint-N` without `finitune-sums.json`, or with files of other sums, is none. What cannot be written or
is not finite takes no name, and what was there before stays.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from transformers.trainer_callback import TrainerState
from trl import SFTTrainer

from finitune.finding import UnreadableInput
from finitune.recording import write_json
from finitune.repairs.outputs import digests
from finitune.reports.sentences import printable
from finitune.sources.text import json_object_of
from finitune.train.fsdp_on_cpu import shard_on_cpu

SUMS = "finitune-sums.json"
STAGING = ".saving"
"""Under the output directory; what a kill leaves there is removed by the next run."""
_NAME = re.compile(r"checkpoint-([0-9]{1,12})")


class CannotSave(Exception):
    """A checkpoint could not be written; the message is one line."""


class NotFinite(Exception):
    """What was to be saved holds NaN or Inf."""


class ProvedTrainer(SFTTrainer):
    """TRL's SFTTrainer, whose checkpoints are proved before they take their names."""

    _instead: Path | None = None

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        shard_on_cpu(self)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._instead) if self._instead is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        output, step = Path(str(self.args.output_dir)), self.state.global_step
        self._instead = output / STAGING
        failure: Exception | None = None
        try:
            super()._save_checkpoint(model, trial)
            self._refuse_nonfinite_state()
        except Exception as error:  # every library has its own for a full disk; tokenizers a bare one
            failure = error
        finally:
            self._instead = None
        self._finish(output / STAGING / f"checkpoint-{step}", output / f"checkpoint-{step}", failure, step)
        if self.args.should_save:
            _forget_oldest(output, self.args.save_total_limit, self.state.best_model_checkpoint)

    def take_up_ended(self, checkpoint: Path) -> bool:
        """Load a checkpoint of the last step; False for an earlier one. transformers would train beyond it."""
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if not 0 < state.max_steps <= state.global_step or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return False
        self._load_from_checkpoint(str(checkpoint))
        self.state = state
        return True

    def save_final(self, target: Path) -> None:
        """The trained model, or its adapter, with its tokenizer. Raises CannotSave, NotFinite."""
        work, failure = Path(str(self.args.output_dir)) / STAGING / target.name, None
        try:
            self.save_model(str(work), _internal_call=True)
        except Exception as error:
            failure = error
        if not self._finish(work, target, failure, self.state.global_step):
            raise NotFinite(f"{target}: not written, the trained weights are not finite")

    def _finish(self, work: Path, target: Path, failure: Exception | None, step: int) -> bool:
        """All ranks decide alike; the first one proves what was written and names it. Raises CannotSave."""
        failure = next((one for one in _from_all(failure) if one is not None), None)
        if failure is None and self.args.process_index == 0:
            try:
                self._with_right_names(work, target.parent)
                seal(work, step=step, processes=self.args.world_size)
                if target.exists():  # of an earlier run of this training, and found damaged
                    shutil.rmtree(target)
                work.rename(target)
                _synced(target.parent)
            except Exception as error:
                failure = error
        failure = next((one for one in _from_all(failure) if one is not None), None)
        if self.args.process_index == 0:
            shutil.rmtree(work.parent, ignore_errors=True)
        if isinstance(failure, NotFinite):
            if self.args.process_index == 0:
                say(f"step {step}: {target.name} is not written: {failure}")
            return False
        if failure is not None:
            reason = failure.strerror if isinstance(failure, OSError) and failure.strerror else str(failure)
            raise CannotSave(f"{target}: not written: {printable(' '.join(reason.split()))[:200]}")
        return True

    def _with_right_names(self, work: Path, output: Path) -> None:
        """The state names the best checkpoint where it will lie."""
        file, best = work / "trainer_state.json", self.state.best_global_step
        if best and file.is_file():
            self.state.best_model_checkpoint = str(output / f"checkpoint-{best}")
            saved = TrainerState.load_from_json(str(file))
            saved.best_model_checkpoint = self.state.best_model_checkpoint
            saved.save_to_json(str(file))

    def _refuse_nonfinite_state(self) -> None:
        """In memory, because sharded checkpoints come in formats of their own."""
        assert self.model is not None
        for name, parameter in self.model.named_parameters():
            _refuse(name, parameter)
        inner: Any = self.optimizer
        state: Any = getattr(getattr(inner, "optimizer", inner), "state", {})
        for entry in list(state.values()) if hasattr(state, "values") else ():
            for name, value in entry.items() if isinstance(entry, dict) else ():
                if isinstance(value, Tensor):
                    _refuse(f"the optimizer's {name}", value)


def seal(directory: Path, **more: Any) -> None:
    """Read back what was written, sum it, and have it on the disk. Raises NotFinite, SafetensorError, OSError."""
    held_back = next(directory.rglob("*.nonfinite"), None)
    if held_back is not None:
        raise NotFinite(f"{held_back.name.removesuffix('.nonfinite')} holds non-finite weights")
    for file in sorted(directory.rglob("*.safetensors")):
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                _refuse(f"{name} in {file.name}", opened.get_tensor(name))
    write_json(directory / SUMS, {"schema": "finitune.checkpoint/1", **more, "files": digests(directory)})
    for path in [*directory.rglob("*"), directory]:
        _synced(path)


def why_damaged(directory: Path) -> str | None:
    """What is wrong with a directory that was sealed; None where every file is as it was written."""
    sums = sums_of(directory).get("files")
    if sums is None:
        return "no sums, so it was not finished"
    now = digests(directory)
    now.pop(SUMS, None)
    if not isinstance(sums, dict) or now != sums:
        files = sums if isinstance(sums, dict) else {}
        return (
            f"{next((n for n in sorted({*files, *now}) if files.get(n) != now.get(n)), SUMS)} is not as it was written"
        )
    return None


def sums_of(directory: Path) -> dict[str, Any]:
    """What was noted when it was sealed; empty where it was not."""
    try:
        return json_object_of(directory / SUMS)
    except UnreadableInput:
        return {}


def checkpoints(output: Path) -> list[Path]:
    """Every `checkpoint-N` there, the newest first, whole or not."""
    named = [(int(m[1]), path) for path in output.glob("checkpoint-*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, reverse=True)]


def last_good(output: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is as it was written, and why newer ones are not taken."""
    problems: list[str] = []
    for path in checkpoints(output):
        why = why_damaged(path)
        if why is None:
            return path, problems
        problems.append(f"{path} is left out: {why}")
    return None, problems


def say(text: str) -> None:
    """One line to the user, as the monitor prints them."""
    print(f"finitune: {text}", file=sys.stderr, flush=True)


def _forget_oldest(output: Path, limit: int | None, best: str | None) -> None:
    kept = [path for path in checkpoints(output) if str(path) != best]
    for path in kept[max(1, limit) :] if limit else ():
        shutil.rmtree(path, ignore_errors=True)


def _refuse(name: str, tensor: Tensor) -> None:
    local: Any = getattr(tensor, "to_local", None)
    values = local() if local else tensor
    if values.is_floating_point() and values.itemsize > 1 and values.numel() and not bool(torch.isfinite(values).all()):
        raise NotFinite(f"{name} is not finite")


def _from_all(mine: Exception | None) -> Iterator[Exception | None]:
    """What every rank has, in their order; errors travel as text."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return iter([mine])
    text = None if mine is None else (type(mine) is NotFinite, str(mine))
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, text)
    return (None if one is None else (NotFinite if one[0] else OSError)(one[1]) for one in found)


def _synced(path: Path) -> None:
    """What is at `path` is on the disk, the entries of a directory too."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
