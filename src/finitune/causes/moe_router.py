"""The router of a mixture of experts sends tokens by wrong or unstable weights.

## What happens

Routing is a softmax over experts and a choice of the largest. Renormalising a single choice gives the constant 1 and
no gradient; large correction biases drown the scores; a wrong routing method computes another model; in 16 bits close
scores change places between two passes.

## How to tell

A mixture of experts. Loads collapse onto few experts, the loss is off from the first step, or only long inputs fail.
The same checkpoint is sound under another routing method.

## How to prove

Compute the router in float32, or choose the experts of a reference implementation: the difference goes away.

## What to do

Router in float32 (float32-modules), the routing method of the model's own code, `k` above 1 with renormalisation.

## What does not help

Clipping or a lower learning rate: routing is wrong before any update. More load balancing for a wrong method.

## References

flashinfer-ai/flashinfer#2431 (routing method), THUDM/slime#795.
"""

remedies = ["float32-modules", "change-settings"]
public_incidents = 5

tells = {
    "router": (4.5, "who computes decides what comes out"),
    "experts": (1.5, "there is a router"),
    "grouped-gemm": (-1.0, "the products are another matter"),
}
