"""A release of the framework changed what the same configuration does.

## What happens

A default, a normalisation or a kernel of the training framework changed from one release, or one commit, to the next.
The same configuration trained before and fails, spikes or converges to something else since.

## How to tell

The configuration, data and seed are those of a run that was sound; only versions differ. Another framework with the
same recipe is sound. DeepSpeed, kernels and compilers have chapters of their own.

## How to prove

Run the same steps in the older release: sound. Halve the distance between the two until one commit is left.

## What to do

Pin the release that was sound (upgrade-package, or the older one), and report the commit.

## What does not help

A lower learning rate, clipping, other data: they were the same when it worked. A new release of everything at once,
which hides what changed.

## References

NVIDIA/Megatron-LM#5782 (bad and good commit known), NVIDIA-NeMo/Megatron-Bridge#4168 and #353,
hiyouga/LLaMA-Factory#2916.
"""

remedies = ["upgrade-package"]
public_incidents = 7

tells = {
    "older-release-sound": (4.0, "another release is sound"),
    "pretrains": (1.5, "a framework that changes from commit to commit"),
    "other-library-sound": (2.0, "the same recipe is sound elsewhere"),
    "spikes": (0.5, "curves differ between releases"),
    "deepspeed": (-2.0, "DeepSpeed has a chapter of its own"),
    "computes-float16": (-1.0, "float16 explains more"),
}
