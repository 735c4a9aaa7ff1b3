"""What does not help: popular advice that was tried in vain, with the reason, for a log and for a case alike.

Chapters say under "What does not help" why a cure is none for their cause; where a chapter is silent, the reason is
the general one below. A cure that is the chapter's own remedy is never called useless.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from finitune.chapter import causes
from finitune.sources.cases.trials import Trial

NOT_FINITE = frozenset({
    "gradient-nan", "gradient-first", "loss-not-finite", "hidden-loss", "sentinel-norm", "evaluation-only",
    "eval-loss-nan", "probability-tensor", "token-zero-output", "nonfinite-parameter", "scale-fell", "scale-at-minimum",
})  # fmt: skip
"""Observations of numbers that are not finite: rounds of clipping or a smaller rate cannot mend these."""
OVERFLOW = frozenset({"scale-fell", "scale-at-minimum", "scale-zero", "overflow-skipped"})


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
    "tiny rate": Advice(
        speaks=r"(?<!higher )learning rate|lower rate", reason="at that rate no update could move a weight that far",
        cures=("lower-learning-rate",),
    ),
    "lower rate": Advice(
        speaks=r"(?<!higher )learning rate|lower rate", reason="it failed all the same",
        cures=("lower-learning-rate",),
    ),
    "clipping": Advice(
        speaks=r"(?<!switching )clipping", reason="scaling by a norm that is NaN makes every gradient NaN",
        vain_after=NOT_FINITE - {"probability-tensor", "token-zero-output"}, cures=("clip-gradients",),
    ),
    "nan_to_num": Advice(
        speaks=r"nan_to_num|replacing nan", reason="it hides the bad number, and goes on with another one",
    ),
    "greedy decoding": Advice(
        speaks=r"do_sample", reason="NaN logits then give token 0, which prints as `!`",
    ),
    "loss scale": Advice(
        speaks=r"loss.scale|lower floor|initial scale",
        reason="what overflows at scale 1 is not the scaler's; other limits only hide it",
        vain_after=OVERFLOW, cures=("dynamic-loss-scale",),
    ),
    "bfloat16": Advice(
        speaks=r"^bfloat16\b|bfloat16 (for|instead of) float16|the reverse|float16 or bfloat16|another dtype",
        reason="it is in use already: what fails here is not the range of float16",
        cures=("use-bfloat16", "set-compute-dtype"),
    ),
    "right padding": Advice(
        speaks=r"right padding|padding on the right", reason="it spares rows without a visible key, and no other ones",
        cures=("pad-right", "name-pad-token"),
    ),
    "no overlap": Advice(
        speaks=r"without overlap", reason="the fault is there without overlap", cures=("disable-overlap-comm",),
    ),
}  # fmt: skip
"""Name of a trial -> what to say of it."""


def useless(trials: Iterable[Trial], observed: Collection[str], cause: str) -> list[str]:
    """One line for each reason: what was tried, each with its place, and why it cannot help where `cause` is right."""
    seen = set(observed)
    remedies = set(causes()[cause].declared("remedies"))
    in_vain: dict[str, dict[str, str]] = {}
    for trial in trials:
        advice = ADVICE[trial.name]
        if seen & advice.vain_after and not remedies & set(advice.cures):
            in_vain.setdefault(_reason(advice, cause), {}).setdefault(trial.name, f"{trial.text} ({trial.place})")
    return [f"{', '.join(tried.values())}: {reason}" for reason, tried in in_vain.items()]


def _reason(advice: Advice, cause: str) -> str:
    """What the chapter says of it, without the advice that it names first; else the general reason."""
    own = causes()[cause].sentences("What does not help")
    said = next((sentence for sentence in own if re.search(advice.speaks, sentence, re.IGNORECASE)), "")
    reason = said.partition(": ")[2] or said
    return reason.rstrip(".") or advice.reason
