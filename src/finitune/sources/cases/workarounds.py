"""Popular workarounds for a bad number, as code, settings and logs spell them: what has been tried already.

Whether one can help against a given cause is judged in `finitune.diagnosis.advice`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.facts import Facts
from finitune.observations import Observation
from finitune.rates import TINY

SPELLINGS = {
    "tried-clipping": (
        r"(?:max_(?:grad_)?norm|gradient_clip(?:ping|_val)|grad_clip\w*|clip_grad\w*|max_norm)['\"]?"
        r"(?: \.{3,} |\s?[=:,(]\s?| )['\"]?(?:[\w.]{1,40}\(\)?,\s?)?(?!0(?:\.0*)?(?![\d.]))\d[\d.e-]*"
    ),
    "tried-nan-to-num": r"nan_to_num|remove_invalid_values['\"]?\s?[=:]\s?true",
    "tried-greedy-decoding": r"do_sample['\"]?\s?[=:]\s?false",
    "tried-loss-scale": (
        r"min_loss_scale['\"]?(?: \.{3,} |\s?[=:]\s?)0(?:\.\d+)?(?![\d.])|"
        r"(?<![\w])loss_scale['\"]?(?: \.{3,} |\s?[=:]\s?)(?!0)\d[\d.]*(?![\d.])"
    ),
    "tried-right-padding": r"padding_side['\"]?\s?[=:]\s?['\"]?right",
}
"""Observation -> how a line shows it; ASCII, and bounded, so that any line may be searched."""
_SPELT = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in SPELLINGS.items()}


def in_text(text: str, place: str) -> Iterator[Observation]:
    """The workarounds that one piece of text shows."""
    for name, pattern in _SPELT.items():
        if found := pattern.search(text):
            yield Observation(name=name, text=found[0], place=place)


def in_facts(facts: Facts) -> Iterator[Observation]:
    """The workarounds that settings show, whichever file they stand in."""
    optimizer, precision, parallel, batching = facts.optimizer, facts.precision, facts.parallel, facts.batching
    if optimizer is not None and optimizer.lr is not None and optimizer.lr < TINY:
        yield _tried("tiny-learning-rate", f"learning rate {optimizer.lr:g}", optimizer.source)
    if optimizer is not None and optimizer.clip:
        yield _tried("clipping", f"gradient norm clipped at {optimizer.clip:g}", optimizer.source)
    if precision is not None and precision.compute == "bfloat16":
        yield _tried("bfloat16", "bfloat16", precision.source)
    if precision is not None and precision.compute == "float16":
        if precision.scaler == "static" and precision.initial_scale:
            yield _tried("loss-scale", f"a loss scale fixed at {precision.initial_scale:g}", precision.source)
        elif precision.min_scale is not None and precision.min_scale < 1:
            yield _tried("loss-scale", f"min_loss_scale {precision.min_scale:g}", precision.source)
    if parallel is not None and parallel.overlap_comm is False:
        yield _tried("no-overlap", "overlap_comm false", parallel.source)
    if batching is not None and batching.padding_side == "right":
        yield _tried("right-padding", "padding on the right", batching.source)


def _tried(name: str, text: str, source: str | None) -> Observation:
    return Observation(name=f"tried-{name}", text=text, place=source or "settings")
