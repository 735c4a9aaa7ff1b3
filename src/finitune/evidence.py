"""How much one piece of evidence weighs, and which of several counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finitune.finding import Evidence

HINT, STRONG, DECISIVE = 1, 3, 6
"""Bits: odds of 2, 8 and 64 to 1; against a cause they are negative. A row has another size only with its reference."""

Tells = Mapping[str, tuple[float, str]]
"""Observation -> its size for (or against) a cause, and the reason in a sentence."""

FLOAT16_ONLY: Tells = {
    "computes-bfloat16": (-DECISIVE, "bfloat16 has the range of float32"),
    "computes-float32": (-DECISIVE, "float32 has range enough"),
    "scale-one": (-STRONG, "float16 is trained with a larger loss scale"),
    "sentinel-norm": (-DECISIVE, "the loss scaler of float16 would have skipped the step"),
    "zero-loss-zero-gradient": (-STRONG, "an overflow leaves no gradient of exactly 0"),
    "zero-loss-finite-gradient": (-STRONG, "an overflow that spoils the loss spoils the gradient too"),
    "divergence": (-STRONG, "an overflow ends in a number that is not finite"),
}
"""Rows of every cause that lies in the range of float16."""

TRAINING_ONLY: Tells = {
    "kernel-level": (-STRONG, "in a report about one operation nothing is trained"),
    "serving": (-STRONG, "in inference nothing is trained"),
}
"""Rows of every cause that lies in training."""


def evidence(about: str, bits: float, text: str) -> Evidence:
    """A piece of evidence: what it is about, its size for (or against) the cause, and what was seen."""
    return Evidence(text=text, bits=bits, about=about)


def strongest(terms: Sequence[Evidence]) -> list[Evidence]:
    """The terms that count: of several about one thing the strongest for and the strongest against a cause.

    What is about nothing ("") counts by itself; of equally strong terms the first counts.
    """
    best: dict[tuple[str, bool], Evidence] = {}
    for term in terms:
        key = (term.about, term.bits > 0)
        if key not in best or abs(term.bits) > abs(best[key].bits):
            best[key] = term
    return [term for term in terms if not term.about or best[term.about, term.bits > 0] is term]
