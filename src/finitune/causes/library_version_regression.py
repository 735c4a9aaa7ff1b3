"""A release of the framework changed what the same configuration does.

## What happens

A default, a normalisation or a kernel of the training framework changed from one release, or one commit, to the next.
The same configuration trained before and fails, spikes or converges to something else since.

## How to tell

The configuration, data and seed are those of a run that was healthy; only versions differ. Another framework with the
same recipe is healthy. DeepSpeed, kernels and compilers have chapters of their own.

## How to prove

Run the same steps in the older release: finite. Halve the distance between the two until one commit is left.

## What to do

Pin the release that was healthy, the older one or a later (upgrade-package); report the commit.

## What does not help

A lower learning rate, clipping, other data: they were the same when it worked. A new release of everything at once,
which hides what changed.

## References

NVIDIA/Megatron-LM#5782 (bad and good commit known), NVIDIA-NeMo/Megatron-Bridge#4168 and #353,
hiyouga/LLaMA-Factory#2916.
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["upgrade-package"]
public_incidents = 7

tells: Tells = {
    "older-release-works": (STRONG, "another release is healthy"),
    "pretrains": (HINT, "such a framework changes from commit to commit"),
    "other-library-works": (STRONG, "the same recipe is healthy in another library"),
    "spikes": (HINT, "loss curves differ between releases"),
    "deepspeed": (-STRONG, "DeepSpeed has a chapter of its own"),
    "computes-float16": (-HINT, "an overflow of float16 is more frequent"),
}
