"""The eps of a normalisation is zero in float16.

## What happens

A norm divides by the root of the mean square plus eps. In float16 everything up to 3e-8 is zero, so an eps of 1e-8 is
none: a row of zeros (padding, a dead channel) is divided by zero and becomes NaN, and so does a row whose squares
vanish, because 2e-4 squared is 4e-8. The other end is as near: an element above 255.9 has a square above 65504, the
mean is infinite, and the whole row becomes zero without any NaN.

## How to tell

The eps in `config.json` and where the norm is computed. The models of transformers and the fused kernels take squares
and mean in float32, where 1e-8 is a number; norms written by hand, and models from remote code, often do not.

## How to prove

Run the captured step again with the norm in float32: it becomes finite.

## What to do

Compute norms in float32 (float32-modules), or the run in bfloat16 (use-bfloat16). An eps of 1e-6 is the smallest that
float16 holds with two digits.

## What does not help

A loss scale: it lifts gradients, not squares of activations. A larger eps alone leaves the overflow at the other end.

## References

Measured in this project: all-float16 RMSNorm of zeros with eps 1e-8 gives NaN, of one element above 255.9 zeros; with
activations of 1e-3 an eps of 1e-6 gives 0.70 for 0.705. facebookresearch/fairscale#263 (a norm reduced in float16).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, FLOAT16_ONLY, STRONG, evidence
from finitune.facts import Model, Precision, Training
from finitune.finding import Evidence, Finding, Origin, Severity, Where

ROUNDS_TO_ZERO = 2.0**-25
"""Half of the smallest float16."""

remedies = ["use-bfloat16", "float32-modules"]
public_incidents = 2
foresees = "norm eps"
tells = FLOAT16_ONLY


def foresee(precision: Precision, model: Model, training: Training | None = None) -> Iterator[Finding]:
    eps = model.norm_eps
    # Autocast computes norms in float32; of a model that is held in float16 nobody knows.
    if eps is None or eps > ROUNDS_TO_ZERO or precision.parameters != "float16":
        return
    wide = training is not None and training.framework == "transformers"  # its own models do as well
    severity: Severity = "info" if wide else "warning"
    held = "finite where the norm is computed in float32" if wide else "and the weights are held in float16"
    yield Finding(
        severity=severity,
        message=f"the eps of the norms is {eps:g}, which is 0 in float16 (smallest {2.0**-24:.2g}): {held}",
        where=Where(file=model.path, key="rms_norm_eps"),
        evidence={"norm_eps": eps, "rounds_to_zero_up_to": ROUNDS_TO_ZERO, "parameters": precision.parameters},
    )


def weigh(model: Model, origin: Origin) -> Iterator[Evidence]:
    eps = model.norm_eps
    if eps is None and origin.dtype == "float16":
        return
    if eps is None or eps > ROUNDS_TO_ZERO or origin.dtype != "float16":
        yield evidence("origin", -DECISIVE, f"eps {eps} is a number in {origin.dtype}")
        return
    inverse = any(name in origin.op for name in ("rsqrt", "div", "reciprocal", "norm"))
    text = f"eps {eps:g} is zero in float16, and {origin.op} makes the first bad value"
    yield evidence("origin", DECISIVE if inverse else -STRONG, text)
    if inverse and origin.divisor is not None:
        yield evidence("operator", STRONG, f"{origin.divisor}, which an eps that is a number prevents")
