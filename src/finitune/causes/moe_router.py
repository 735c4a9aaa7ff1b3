"""The router of a mixture of experts sends tokens by wrong or unstable weights.

## What happens

Routing is a softmax over experts and a choice of the largest. Renormalising a single choice gives the constant 1 and
no gradient; large correction biases drown the scores; a wrong routing method computes another model; in 16 bits close
scores change places between two passes.

## How to tell

A mixture of experts. Loads collapse onto few experts, the loss is off from the first step, or only long inputs fail.
The same checkpoint is healthy under another routing method.

## How to prove

Compute the router in float32, or choose the experts of a reference implementation: the difference goes away.

## What to do

Router in float32 (float32-modules), the routing method of the model's own code, `k` above 1 with renormalisation.

## What does not help

Clipping or a lower learning rate: routing is wrong before any update. More load balancing for a wrong method.

## References

flashinfer-ai/flashinfer#2431 (routing method), THUDM/slime#795.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import HINT, STRONG, Tells
from finitune.facts import Model
from finitune.finding import Finding, Where

ALWAYS_RENORMALISED = ("mixtral",)
"""Families whose code divides by the sum whatever the configuration says."""

remedies = ["float32-modules"]
public_incidents = 5
foresees = "router"

tells: Tells = {
    "loss-repeats": (HINT, "a gate that is constantly 1 learns nothing"),
    "router": (STRONG, "the router decides which expert computes"),
    "experts": (HINT, "a model with experts has a router"),
    "grouped-gemm": (-HINT, "the products of experts are another matter"),
}


def foresee(model: Model) -> Iterator[Finding]:
    one_of_several = (model.experts or 0) > 1 and model.experts_per_token == 1
    renormalised = model.renormalised or (model.family in ALWAYS_RENORMALISED and model.renormalised is None)
    if not one_of_several or not renormalised:
        return
    yield Finding(
        severity="warning",  # the experts learn all the same
        message=f"each token takes 1 of {model.experts} experts, and its weight is divided by itself: the gate is the "
        "constant 1, and the router gets no gradient",
        where=Where(file=model.path, key="num_experts_per_tok"),
        evidence={"experts": model.experts, "experts_per_token": 1},
    )
