"""What users have beside a log, the lines of one, and what `finitune diagnose` makes of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources import worlds

import finitune
from finitune.finding import Diagnosis, Incident

Inputs = dict[str, Any]


def record(loss: object, norm: object, rate: object, epoch: float) -> str:
    return f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': {rate}, 'epoch': {epoch:.2f}}}\n"


def arguments(**values: object) -> str:
    """TrainingArguments as the example scripts of transformers print them."""
    lines = "".join(f"{key}={value},\n" for key, value in sorted(values.items()))
    head = "05/14/2024 09:21:37 - INFO - __main__ - Training/evaluation parameters TrainingArguments(\n_n_gpu=1,\n"
    return f"{head}{lines})\n"


def falling(count: int, start: float = 2.6) -> str:
    """A sound beginning: the loss comes down, with some noise."""
    noise = np.random.default_rng(3).normal(0, 0.03, count)
    return "".join(
        record(round(1.1 + (start - 1.1) * 0.985**n + noise[n], 4), round(1.4 + 9 * abs(noise[n]), 4),
               f"{2e-5 * (1 - n / (2 * count)):.6g}", n / count)
        for n in range(count)
    )  # fmt: skip


def trainer(path: Path, **values: object) -> Inputs:
    return {"configs": [worlds.settings(path / "args.json", **{"learning_rate": 2e-5, "output_dir": "out", **values})]}


def engine(path: Path, *, overlap: bool | None, version: str, bucket: float = 5e8, dtype: str = "bf16") -> Inputs:
    """The DeepSpeed file of a ZeRO-2 run, and the release."""
    zero = {"stage": 2, "reduce_bucket_size": bucket} | ({} if overlap is None else {"overlap_comm": overlap})
    file = worlds.settings(path / "zero2.json", zero_optimization=zero, **{dtype: {"enabled": True}})
    return {"configs": [file], "requirements": requires(path, f"deepspeed=={version}")}


def requires(path: Path, *lines: str) -> Path:
    file = path / "requirements.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def model(path: Path, family: str = "llama", dtype: str = "bfloat16", **config: object) -> Path:
    return worlds.model(path / "model", worlds.tensors(dtype=dtype), model_type=family, **config)


def untrained(path: Path) -> Inputs:
    """A base model whose chat markers were never trained, and chats."""
    pytest.importorskip("tokenizers")
    weights = worlds.tensors()
    weights["model.embed_tokens.weight"][[6, 7]] *= 1e-6
    directory = worlds.model(path / "model", weights)
    return {"model": directory, "data": worlds.jsonl(path / "chats.jsonl", [worlds.chat()] * 8)}


def unanswered(path: Path, rows: int = 8, empty: int = 8) -> Inputs:
    """Chats of which `empty` have no answer, so that no token of theirs is a target."""
    pytest.importorskip("tokenizers")
    asked = {"messages": [{"role": "user", "content": "what is the answer"}]}
    data = worlds.jsonl(path / "chats.jsonl", [asked] * empty + [worlds.chat()] * (rows - empty))
    return {"model": model(path), "data": data}


def spoiled(path: Path) -> Inputs:
    """A model whose every weight is NaN, as a run saves them that went on."""
    return {"model": worlds.model(path / "model", {k: np.full_like(v, np.nan) for k, v in worlds.tensors().items()})}


def several(*parts: Callable[[Path], Inputs]) -> Callable[[Path], Inputs]:
    """All of these; configurations add up."""

    def files(path: Path) -> Inputs:
        found: Inputs = {}
        for part in parts:
            more = part(path)
            found |= more | {"configs": [*found.get("configs", ()), *more.get("configs", ())]}
        return found

    return files


def args(**values: object) -> Callable[[Path], Inputs]:
    return partial(trainer, **values)


def of(family: str = "llama", dtype: str = "bfloat16", **config: object) -> Callable[[Path], Inputs]:
    return lambda path: {"model": model(path, family, dtype, **config)}


def card(name: str) -> Callable[[Path], Inputs]:
    return lambda _: {"gpu": name}


def releases(*lines: str) -> Callable[[Path], Inputs]:
    return lambda path: {"requirements": requires(path, *lines)}


def told(path: Path, text: str, inputs: Inputs | None = None) -> Diagnosis:
    log = path / "train.log"
    log.write_text(text)
    return finitune.diagnose(log, **(inputs or {}))


def names(incident: Incident) -> list[str]:
    return [cause.cause for cause in incident.causes]
