"""Everything that is known before a training begins: the settings, the facts, the plan, and the rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finitune.facts import Hardware
from finitune.sources import hardware
from finitune.sources.gather import gather
from finitune.sources.result import Track, untracked
from finitune.train.plan import BESIDE, Plan, plan, precision
from finitune.train.rows import Form, sft_rows
from finitune.train.settings import Written, read

OF_PROCESSOR = ("processor_config.json", "preprocessor_config.json")
"""One of them lies beside a model that takes images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run begins with; `note` is said of the hardware, where there is something to say."""

    written: Written
    plan: Plan
    form: Form
    rows: Sequence[Mapping[str, Any]]
    note: str | None = None


def prepare(path: str | Path, *, trains: bool = True, track: Track = untracked) -> Prepared:
    """Read the settings at `path`, and the model and the data that they name.

    `trains`: the run begins now, on the hardware at hand; otherwise it is planned for the card that the file names.
    Raises UnreadableInput for whatever cannot be used.
    """
    written = read(path)
    card, note = _card(written, trains=trains)
    early = {one.key: one.value for one in precision(written.keys, card) if one.key not in BESIDE}
    keys = {**early, **written.keys}
    reading = gather(keys, model=written.model, data=written.data, gpu=card.name if card else None, track=track)
    words = reading.facts.vocabulary
    sees = any((written.model / name).is_file() for name in OF_PROCESSOR)
    form, rows = sft_rows(written.data, chat=bool(words and words.chat_template), sees=sees)
    images = "images" in rows[0]
    found = plan(
        written, reading.facts, card=card, form=form, images=images, world=int(os.environ.get("WORLD_SIZE", "1")),
        not_checked=[one for one in reading.not_checked if one.input != "gpu"],
    )  # fmt: skip
    return Prepared(written=written, plan=found, form=form, rows=rows, note=note)


def _card(written: Written, *, trains: bool) -> tuple[Hardware | None, str | None]:
    """What to plan for, and what is said of it. A CPU trains no float16, whatever card was named."""
    named = hardware.read(written.ours.gpu) if written.ours.gpu else None
    if named is not None and not trains:
        return named, None
    here = at_hand()
    if named is not None and here is None:
        return None, f"{named.name}, which {written.file.name} names, is not in this machine: planned for its CPU"
    return named or here, None


def at_hand() -> Hardware | None:
    """The GPU of this machine as torch sees it; None for a CPU, and where there is no torch."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return Hardware(
        name=name, bfloat16=torch.cuda.is_bf16_supported(including_emulation=False), memory_gib=round(memory)
    )  # fmt: skip
