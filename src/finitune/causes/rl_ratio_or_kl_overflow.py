"""exp of a difference of log-probabilities leaves the range, or compares two different models.

## What happens

Policy gradients weigh tokens by exp(new - old) log-probability and penalise a divergence built alike. When sampler
and trainer compute the same weights differently (other kernels, dtype, template or temperature), or one token becomes
very unlikely, the exponential explodes.

## How to tell

Only reinforcement learning. The ratio is not 1 on the first step after sampling; the policy or KL term explodes while
the language model loss of the same batch is normal.

## How to prove

On the first step after sampling compare the log-probabilities of sampler and trainer: they must agree to 1e-2.

## What to do

Compute log-probabilities in float32, clip the log-ratio before exp, truncate importance weights (change-settings).

## What does not help

Clipping the gradient: an infinite ratio makes it NaN. A larger KL coefficient multiplies the term that explodes.

## References

OpenRLHF/OpenRLHF#931, huggingface/trl#6550.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.finding import Evidence, Origin

remedies = ["change-settings"]
public_incidents = 5

tells: Tells = {
    "reinforcement": (STRONG, "a policy is compared with its older self"),
    "policy-ratio": (STRONG, "the ratio is exp of a difference of log-probabilities"),
    "scale-at-minimum": (-HINT, "an overflow of float16 is more frequent"),
    "computes-float16": (-HINT, "an overflow of float16 is more frequent"),
    "probability-tensor": (HINT, "the policy had gone NaN"),
    "experts": (-HINT, "with experts the router may differ instead"),
}

POLICY = re.compile(r"ratio|\bkl\b|_kl|\bk[123]\b|log_?prob|logps?\b|old_", re.IGNORECASE)
"""What implementations of PPO and its kin call the numbers that they compare; k1 to k3 are Schulman's estimators of the
KL divergence (joschu.net/blog/kl-approx.html).
"""


def weigh(origin: Origin) -> Iterator[Evidence]:
    if origin.op != "aten.exp" or origin.phase != "forward" or not origin.line:
        return
    if POLICY.search(origin.line):
        text = f"the first bad value is an exponential in a line that compares policies: {origin.line}"
        yield evidence("origin", DECISIVE, text)
        yield evidence("operator", STRONG, "exp of a difference above 88 is infinite in float32")
