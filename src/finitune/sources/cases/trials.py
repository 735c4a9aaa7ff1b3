"""What has been tried: popular cures for a bad number, as code, settings and logs spell them.

A trial is only told here. Whether it can help with a given cause is judged elsewhere (`finitune.diagnosis.advice`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from finitune.facts import Facts
from finitune.sources.cases.circumstances import TINY_RATE

SPELLINGS = {
    "clipping": (
        r"(?:max_(?:grad_)?norm|gradient_clip(?:ping|_val)|grad_clip\w*|clip_grad\w*|max_norm)['\"]?"
        r"(?: \.{3,} |\s?[=:,(]\s?| )['\"]?(?:[\w.]{1,40}\(\)?,\s?)?(?!0(?:\.0*)?(?![\d.]))\d[\d.e-]*"
    ),
    "nan_to_num": r"nan_to_num|remove_invalid_values['\"]?\s?[=:]\s?true",
    "greedy decoding": r"do_sample['\"]?\s?[=:]\s?false",
    "loss scale": (
        r"min_loss_scale['\"]?(?: \.{3,} |\s?[=:]\s?)0(?:\.\d+)?(?![\d.])|"
        r"(?<![\w])loss_scale['\"]?(?: \.{3,} |\s?[=:]\s?)(?!0)\d[\d.]*(?![\d.])"
    ),
    "right padding": r"padding_side['\"]?\s?[=:]\s?['\"]?right",
}
"""Trial -> how a line shows it; ASCII, and bounded, so that any line may be searched."""
_SPELT = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in SPELLINGS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One cure that was tried: its name, the words that show it, and where they stand."""

    name: str
    text: str
    place: str


def in_text(text: str, place: str) -> Iterator[Trial]:
    """The trials that one piece of text shows."""
    for name, pattern in _SPELT.items():
        if found := pattern.search(text):
            yield Trial(name=name, text=found[0], place=place)


def in_facts(facts: Facts) -> Iterator[Trial]:
    """The trials that settings show, whichever file they stand in."""
    optimizer, precision, parallel, batching = facts.optimizer, facts.precision, facts.parallel, facts.batching
    if optimizer is not None and optimizer.lr is not None and optimizer.lr < TINY_RATE:
        yield _trial("tiny rate", f"learning rate {optimizer.lr:g}", optimizer.source)
    if optimizer is not None and optimizer.clip:
        yield _trial("clipping", f"gradient norm clipped at {optimizer.clip:g}", optimizer.source)
    if precision is not None and precision.compute == "bfloat16":
        yield _trial("bfloat16", "bfloat16", precision.source)
    if precision is not None and precision.compute == "float16":
        if precision.scaler == "static" and precision.initial_scale:
            yield _trial("loss scale", f"a loss scale fixed at {precision.initial_scale:g}", precision.source)
        elif precision.min_scale is not None and precision.min_scale < 1:
            yield _trial("loss scale", f"min_loss_scale {precision.min_scale:g}", precision.source)
    if parallel is not None and parallel.overlap_comm is False:
        yield _trial("no overlap", "overlap_comm false", parallel.source)
    if batching is not None and batching.padding_side == "right":
        yield _trial("right padding", "padding on the right", batching.source)


def _trial(name: str, text: str, source: str | None) -> Trial:
    return Trial(name=name, text=text, place=source or "settings")
