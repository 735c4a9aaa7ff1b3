"""Facts that a log prints about its run: versions, dtypes, card and engine."""

from __future__ import annotations

from collections.abc import Sequence

from finitune.facts import Facts, Hardware, Parallel, Precision, Quantization, Training
from finitune.finding import UnreadableInput
from finitune.sources import hardware
from finitune.sources.logs.attempt import Message


def facts_of(messages: Sequence[Message]) -> Facts:
    """None where the log is silent or contradicts itself."""
    by_kind: dict[str, list[Message]] = {}
    for one in messages:
        by_kind.setdefault(one.kind, []).append(one)
    versions = {name.lower().replace("pytorch", "torch"): v for one in by_kind.get("version", ())
                for name, _, v in [one.text.partition(" ")] if v}  # fmt: skip
    half = by_kind.get("float16") or by_kind.get("overflow", [])
    brain = by_kind.get("bfloat16")
    printed = half if half and not brain else brain if brain and not half else None
    precision = None
    if printed:
        scaler = "dynamic" if printed is half else "none"
        compute = "float16" if printed is half else "bfloat16"
        precision = Precision(compute=compute, scaler=scaler, source=printed[0].place)
    stage = _first(by_kind.get("zero-stage"))
    parallel = None
    if "deepspeed" in by_kind or "overflow" in by_kind or stage:
        overlap = _first(by_kind.get("overlap"))
        parallel = Parallel(
            kind="deepspeed", zero_stage=int(stage) if stage else None,
            overlap_comm=None if overlap is None else overlap.lower() == "true",
        )  # fmt: skip
    bits = 8 if "8-bit" in by_kind else 4 if "4-bit" in by_kind else None
    return Facts(
        precision=precision,
        parallel=parallel,
        versions=versions or None,
        hardware=_card(_first(by_kind.get("card"))),
        quantization=Quantization(bits=bits) if bits else None,
        training=Training(framework="ludwig") if "nonfinite-parameter" in by_kind else None,
    )


def _first(messages: Sequence[Message] | None) -> str | None:
    return messages[0].text if messages else None


def _card(name: str | None) -> Hardware | None:
    if name is None:
        return None
    try:
        return hardware.read(name)
    except UnreadableInput:
        return None
