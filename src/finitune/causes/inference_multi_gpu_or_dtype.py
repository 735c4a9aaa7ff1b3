"""Copies from one card to another arrive wrong.

## What happens

A model that is sharded over cards hands activations from one to the next. Where an IOMMU or PCIe access control
redirects peer-to-peer traffic, or a driver claims peer access that a board lacks, a copy arrives as zeros or garbage.

## How to tell

The same weights are healthy on one card or another machine; with two they give `!!!!`, NaN probabilities or a loss of
10 instead of 3. Nothing in the model matters.

## How to prove

Copy a tensor from card to card and back and compare. Run on one card, or with `NCCL_P2P_DISABLE=1`: finite.

## What to do

Stage copies through the host (`NCCL_P2P_DISABLE=1`), switch the IOMMU or ACS off in the firmware (change-settings).

## What does not help

bfloat16, pad tokens, `do_sample=False` (it turns the error into `!!!!`), another checkpoint: the weights are intact.

## References

meta-llama/llama#380, unslothai/unsloth#10613.
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["replace-hardware"]
public_incidents = 6

tells: Tells = {
    "peer-copies": (STRONG, "some boards return zeros for copies between cards"),
    "one-card-works": (STRONG, "one card needs no copy"),
    "several-cards-fails": (STRONG, "only several cards fail"),
    "split-over-cards": (STRONG, "the model is split, so activations are copied between cards"),
    "serving": (HINT, "the model is used, not trained"),
    "token-zero-output": (HINT, "copies that return zeros make every logit alike"),
    "probability-tensor": (HINT, "copies that return garbage make the logits NaN"),
}
