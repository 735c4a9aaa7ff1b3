"""One guarded fine-tune from beginning to end: model, trainer, guard, checkpoints, what is saved, and the report."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitune.finding import UnreadableInput
from finitune.recording import write_json
from finitune.reports.sentences import counted, printable
from finitune.sources.result import Track, untracked
from finitune.sources.text import json_object_of
from finitune.train.plan import OF_TOKENIZER
from finitune.train.prepared import Prepared, prepare
from finitune.train.settings import Ours, Written, identity
from finitune.train.shown import short

STATE, BASE = "finitune-train.json", "base"
NEEDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
FAILED, INTERRUPTED = 1, 130


def train(path: str | Path, *, track: Track = untracked) -> int:
    """Fine-tune as the file says; the exit code of `finitune train`.

    Raises UnreadableInput for whatever cannot be used, before anything is written.
    """
    first = os.environ.get("RANK", "0") == "0"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnreadableInput(f"finitune train needs {', '.join(missing)}: pip install 'finitune[hf]'")
    prepared = prepare(path, track=track)
    written = prepared.written
    quantised = any(written.keys.get(key) for key in ("load_in_4bit", "load_in_8bit"))
    if quantised and importlib.util.find_spec("bitsandbytes") is None:
        raise UnreadableInput(
            f"{written.file}: load_in_4bit and load_in_8bit need bitsandbytes: pip install 'finitune[qlora]'"
        )
    if quantised and not written.keys.get("use_peft"):
        raise UnreadableInput(
            f"{written.file}: load_in_4bit: weights of 4 or 8 bits are not trained (expected use_peft: true)"
        )

    from finitune.train.checkpoints import STAGING, CannotSave, NotFinite, last_good, say, sums_of

    output, who = written.output, identity(written)
    if _is_finished(output, who):
        if first:
            say(f"{output}: this training is finished; change output_dir to train again")
        return 0
    checkpoint, problems = last_good(output)
    if first:
        shutil.rmtree(output / STAGING, ignore_errors=True)
        if not (output / STATE).exists():  # a model that was repaired for a training that never began
            shutil.rmtree(output / BASE, ignore_errors=True)
        for line in [*([prepared.note] if prepared.note else []), *problems]:
            say(line)
        for line in filter(None, short(prepared.plan)):
            print(line, file=sys.stderr)
        if checkpoint is not None:
            say(f"going on from {checkpoint}")
            world = os.environ.get("WORLD_SIZE", "1")
            if str(sums_of(checkpoint).get("processes")) != world:
                say(f"it was written by another number of processes than {world}, so this is not the same bit for bit")
    run = _Run(prepared, who, first=first)
    if not (first and sys.stderr.isatty()):
        _quiet()
    try:
        return run.train(checkpoint)
    except KeyboardInterrupt:
        good = last_good(output)[0]
        where = f"the same command goes on from {good}" if good else "no checkpoint was written yet"
        if first:
            say(f"interrupted; {where}")
        return INTERRUPTED
    except (CannotSave, NotFinite) as error:
        good = last_good(output)[0]
        if first:
            left = f"{good} is whole, and the same command goes on from there" if good else "there is no earlier one"
            say(f"{error}; {left}")
        return FAILED


def _is_finished(output: Path, who: str) -> bool:
    """Whether this very training has ended there. Raises UnreadableInput where another one lies there."""
    try:
        said = json_object_of(output / STATE) if (output / STATE).exists() else None
    except UnreadableInput:
        said = {}
    others = said is None and output.is_dir() and any(output.glob("checkpoint-*"))
    if others or (said is not None and said.get("training") != who):
        what = "checkpoints of another training" if others else "a training with other settings or data"
        raise UnreadableInput(f"{output}: {what} (expected a new output_dir)")
    return bool(said and said.get("finished"))


def _quiet() -> None:
    """No progress bars in a file, nor once for each process."""
    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*is deprecated and will be removed in v6", category=FutureWarning)


class _Run:
    """One process of a training."""

    def __init__(self, prepared: Prepared, who: str, *, first: bool) -> None:
        self.prepared, self.who, self.first = prepared, who, first
        self.written: Written = prepared.written
        self.output = self.written.output
        self.began = time.monotonic()

    def train(self, checkpoint: Path | None) -> int:
        from finitune.integrations.transformers import TrainerCallback
        from finitune.monitor.crash import record_crash
        from finitune.monitor.process import Stopped, active
        from finitune.train.checkpoints import CannotSave, say

        args, model_args = self._arguments()
        base = self._base(args)
        ours = self.written.ours
        run_dir = Path(os.environ.get("FINITUNE_RUN_DIR") or ours.run_dir or self.output / "finitune")
        if args.deepspeed:
            _watch_engines(run_dir, ours)
        trainer = self._trainer(args, model_args, base)
        guard = TrainerCallback(run_dir=run_dir, mode=ours.mode, signals=ours.signals)
        trainer.add_callback(guard)
        self._note(finished=False)
        try:
            if checkpoint is None or not trainer.take_up_ended(checkpoint):
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Stopped as stop:
            self._report(run_dir)
            return int(stop.code or 0)
        except CannotSave:
            raise
        except Exception as error:
            if os.environ.get("FINITUNE_TRACEBACK"):
                raise
            if (monitor := active()) is not None:
                record_crash(monitor, error, error.__traceback__)
            text = printable(" ".join(str(error).split()))[:300]
            say(f"the training ended in {type(error).__name__}: {text} (FINITUNE_TRACEBACK=1 shows where)")
            return FAILED
        finally:
            if (monitor := active()) is not None:
                monitor.close()
        trainer.save_final(self.output / "final")
        code = self._export(trainer, base)
        trainer.accelerator.wait_for_everyone()
        if self.first:
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            went = f", loss {losses[0]:.4g} -> {losses[-1]:.4g}" if losses else ""
            steps = counted(trainer.state.global_step, "step")
            say(f"trained {steps}{went}, {time.monotonic() - self.began:.0f} s; saved in {self.output / 'final'}")
            self._report(run_dir)
        self._note(finished=not code)
        trainer.accelerator.end_training()
        return code

    def _note(self, *, finished: bool) -> None:
        if self.first:
            self.output.mkdir(parents=True, exist_ok=True)
            write_json(self.output / STATE, {"schema": "finitune.train/1", "training": self.who, "finished": finished})

    def _arguments(self) -> tuple[Any, Any]:
        """Raises UnreadableInput for a key that the TRL of this environment does not have, or a value it refuses."""
        from trl import ModelConfig, ScriptArguments, SFTConfig

        said = self.prepared.plan.settings()
        said.setdefault("disable_tqdm", not sys.stderr.isatty())
        said.pop("data_files", None)
        parts: list[dict[str, Any]] = []
        known: set[str] = set()
        for kind in (SFTConfig, ModelConfig, ScriptArguments):
            names = {one.name for one in dataclasses.fields(kind) if one.init}
            parts.append({key: value for key, value in said.items() if key in names})
            known |= names
        strange = [key for key in said if key not in known and key not in OF_TOKENIZER]
        if strange:
            raise UnreadableInput(f"{self.written.file}: {strange[0]}: the installed TRL has no such key")
        parts[0].pop("pad_token", None)  # set on the tokenizer, as TRL asks for
        try:
            return SFTConfig(**parts[0]), ModelConfig(**parts[1])
        except (TypeError, ValueError, ImportError) as error:
            reason = printable(" ".join(str(error).split()))[:300]
            raise UnreadableInput(f"{self.written.file}: refused by TRL ({reason})") from None

    def _base(self, args: Any) -> Path:
        """The model to train: the one that is named, or a copy with new embedding rows."""
        tokens = self.prepared.plan.tokens
        if not tokens:
            return self.written.model
        from finitune.repairs.repair import repair

        copy = self.output / BASE
        with args.main_process_first(local=False, desc="new embedding rows"):
            if not copy.exists():
                self.output.mkdir(parents=True, exist_ok=True)
                repair("reinit-token-rows", model=self.written.model, tokens=list(tokens), output=copy, seed=args.seed)
        return copy

    def _trainer(self, args: Any, model_args: Any, base: Path) -> Any:
        import torch
        from transformers import set_seed
        from trl import get_peft_config, get_quantization_config

        from finitune.monitor.heal.float32_forward import compute_in_float32
        from finitune.train.checkpoints import ProvedTrainer
        from finitune.train.export import tokenizer_of

        beside = self.prepared.plan.beside()
        processing = _processing(base, images="images" in self.prepared.rows[0])
        words = tokenizer_of(processing)
        for key in OF_TOKENIZER:
            if key in beside:
                setattr(words, key, beside[key])
        if words.pad_token is None:
            words.pad_token = words.eos_token
        quantised = get_quantization_config(model_args)
        device = "cpu" if args.use_cpu else torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
        args.model_init_kwargs = {
            "dtype": model_args.dtype, "attn_implementation": model_args.attn_implementation,
            **({"quantization_config": quantised, "device_map": {"": device}} if quantised else {}),
            **(args.model_init_kwargs or {}),
        }  # fmt: skip
        set_seed(args.seed)
        try:
            trainer: Any = ProvedTrainer(
                model=str(base), args=args, train_dataset=_dataset(self.prepared.rows), processing_class=processing,
                peft_config=get_peft_config(model_args),
            )  # fmt: skip
        except Exception as error:  # what TRL, transformers and their readers of files raise
            if os.environ.get("FINITUNE_TRACEBACK"):
                raise
            reason = printable(" ".join(str(error).split()))[:300]
            raise UnreadableInput(
                f"{self.written.file}: no training can begin ({type(error).__name__}: {reason})"
            ) from None
        if model_args.use_peft or "dtype" not in self.written.keys:
            for parameter in trainer.model.parameters():  # TRL casts adapters on a 4-bit base to bfloat16
                if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
                    parameter.data = parameter.data.float()
        for name in beside.get("float32_modules", ()):
            for module in _modules(trainer.model, name, self.written.file):
                compute_in_float32(module)
        return trainer

    def _export(self, trainer: Any, base: Path) -> int:
        """Prove what was saved, on the first rank; 0 where it is what was trained. All ranks call this."""
        from finitune.monitor.probes.ranks import is_sharded
        from finitune.train.checkpoints import say
        from finitune.train.export import as_a_whole, export, is_fully_sharded

        batch = trainer.data_collator([trainer.train_dataset[0]])
        final = self.output / "final"
        model = trainer.accelerator.unwrap_model(trainer.model)
        in_parts = is_sharded([*model.parameters()])
        if in_parts and not is_fully_sharded(model):
            if self.first:
                say(f"{final}: written, and not compared with the model that was trained, which is held in parts")
            return 0
        try:
            if in_parts:
                model = as_a_whole(model, final, base)
            if not self.first:
                return 0
            found = export(model, trainer, final, base, batch, merge=self.written.ours.merge)
        except Exception as error:  # a full disk, a model that does not fit twice
            if os.environ.get("FINITUNE_TRACEBACK"):
                raise
            text = printable(" ".join(str(error).split()))[:300]
            say(f"{final} is written, and was not proved: {type(error).__name__}: {text}; the same command tries again")
            return FAILED
        sample = printable(" ".join(found.sample.split()))[:100]
        same = "as it was trained" if found.agrees else "NOT as it was trained"
        same += f" {found.note}" if found.note else ""
        say(f'{found.path}: loaded again, {same} (logits off by {found.off:.1g} of {found.of}); it writes "{sample}"')
        return 0 if found.agrees else FAILED

    def _report(self, run_dir: Path) -> None:
        from finitune.train.checkpoints import say

        if not (self.first and self.written.ours.report):
            return
        try:
            from finitune.show import report

            say(f"report in {report(run_dir)}")
        except (FileNotFoundError, UnreadableInput, OSError) as error:
            say(f"no report: {error}")


def _processing(base: Path, *, images: bool) -> Any:
    """The tokenizer of the model, or its processor for data with images. Raises UnreadableInput."""
    from transformers import AutoProcessor, AutoTokenizer

    kind, what = (AutoProcessor, "processor") if images else (AutoTokenizer, "tokenizer")
    try:
        return kind.from_pretrained(base)
    except (OSError, ValueError, ImportError) as error:
        raise UnreadableInput(f"{base}: no {what} that can be loaded ({str(error).splitlines()[0][:200]})") from None


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    """As TRL takes them; images are read from their files when a batch needs them."""
    from datasets import Dataset, Image, List

    data = Dataset.from_list([dict(row) for row in rows])
    return data.cast_column("images", List(Image(mode="RGB"))) if "images" in rows[0] else data


def _watch_engines(run_dir: str | Path, ours: Ours) -> None:
    """A DeepSpeed engine is watched from when it is made: the trainer's callbacks do not see it."""
    from finitune.integrations import deepspeed
    from finitune.monitor.process import Monitor, active

    if active() is None:
        Monitor(run_dir=run_dir, mode=ours.mode, signals=ours.signals)
        deepspeed.attach()


def _modules(model: Any, name: str, file: Path) -> list[Any]:
    """The modules of that name, under whatever PEFT has put around them. Raises UnreadableInput for none."""
    found: Mapping[str, Any] = dict(model.named_modules())
    named = [part for full, part in found.items() if full == name or full.endswith(f".{name}")]
    if not named:
        raise UnreadableInput(f"{file}: float32_modules: {name}: the model has no such module")
    return named
