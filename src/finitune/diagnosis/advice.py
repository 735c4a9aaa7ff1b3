"""What does not help: popular advice that was tried in vain, with the reason, for a log and for a case alike.

Chapters say under "What does not help" why a cure is none for their cause; where a chapter is silent, the reason is
the general one below. A cure that is the chapter's own remedy is never called useless.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from finitune.chapter import causes
from finitune.observations import Observation

NOT_FINITE = frozenset({
    "nonfinite-gradient", "gradient-first", "nonfinite-loss", "hidden-loss", "sentinel-norm", "nonfinite-evaluation",
    "probability-tensor", "token-zero-output", "nonfinite-parameter", "loss-scale-collapse", "scale-at-minimum",
})  # fmt: skip
"""Observations of numbers that are not finite: neither clipping nor a lower learning rate cures these."""
OVERFLOW = frozenset({"loss-scale-collapse", "scale-at-minimum", "scale-zero", "overflow"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One popular cure: how chapters speak of it, why it fails in general, when it is in vain, and when it is not."""

    speaks: str
    reason: str
    vain_after: frozenset[str] = NOT_FINITE
    """Observations of which one must be there."""
    cures: tuple[str, ...] = ()
    """Remedies that are this advice."""


ADVICE = {
    "tried-tiny-learning-rate": Advice(
        speaks=r"(?<!higher )learning rate|lower rate", reason="at that rate no update could move a weight that far",
        cures=("lower-learning-rate",),
    ),
    "tried-lower-learning-rate": Advice(
        speaks=r"(?<!higher )learning rate|lower rate", reason="it failed all the same",
        cures=("lower-learning-rate",),
    ),
    "tried-clipping": Advice(
        speaks=r"(?<!switching )clipping", reason="scaling by a norm that is NaN makes every gradient NaN",
        vain_after=NOT_FINITE - {"probability-tensor", "token-zero-output"}, cures=("clip-gradients",),
    ),
    "tried-nan-to-num": Advice(
        speaks=r"nan_to_num|replacing nan", reason="it hides the bad number, and goes on with another one",
    ),
    "tried-greedy-decoding": Advice(
        speaks=r"do_sample", reason="NaN logits then give token 0, which prints as `!`",
    ),
    "tried-loss-scale": Advice(
        speaks=r"loss.scale|lower floor|initial scale",
        reason="what overflows at scale 1 is not the scaler's; other limits only hide it",
        vain_after=OVERFLOW, cures=("dynamic-loss-scale",),
    ),
    "tried-bfloat16": Advice(
        speaks=r"^bfloat16\b|bfloat16 (for|instead of) float16|the reverse|float16 or bfloat16|another dtype",
        reason="it is in use already: what fails here is not the range of float16",
        cures=("use-bfloat16", "set-compute-dtype"),
    ),
    "tried-right-padding": Advice(
        speaks=r"right padding|padding on the right", reason="it spares rows without a visible key, and no other ones",
        cures=("pad-right", "name-pad-token"),
    ),
    "tried-no-overlap": Advice(
        speaks=r"without overlap", reason="the fault is there without overlap", cures=("disable-overlap-comm",),
    ),
}  # fmt: skip
"""Observation of a workaround -> what to say of it."""


def useless(tried: Iterable[Observation], observed: Collection[str], cause: str) -> list[str]:
    """One line for each reason: what was tried, each with its place, and why it cannot help where `cause` is right."""
    seen = set(observed)
    remedies = set(causes()[cause].declared("remedies"))
    in_vain: dict[str, dict[str, str]] = {}
    for one in tried:
        advice = ADVICE[one.name]
        if seen & advice.vain_after and not remedies & set(advice.cures):
            in_vain.setdefault(_reason(advice, cause), {}).setdefault(one.name, one.words)
    return [f"{', '.join(words.values())}: {reason}" for reason, words in in_vain.items()]


def _reason(advice: Advice, cause: str) -> str:
    """What the chapter says of it, without the advice that it names first; else the general reason."""
    own = causes()[cause].sentences("What does not help")
    said = next((sentence for sentence in own if re.search(advice.speaks, sentence, re.IGNORECASE)), "")
    reason = said.partition(": ")[2] or said
    return reason.rstrip(".") or advice.reason
