"""Training had gone NaN, and the NaN was saved over the last good weights.

## What happens

One non-finite gradient that reaches the optimizer makes every weight it trains NaN within a step or two. The trainer
goes on, prints `loss 0.0`, writes checkpoints and ends with exit status 0. The damage is noticed at inference
("probability tensor contains either inf, nan or element < 0", an answer of `!!!!`), or when the next run starts from
the file.

## How to tell

Whole tensors are NaN, not single values: every tensor that was trained, so all of an adapter or nearly all of a model.
Damage on disk or in transit is different: a few values of one tensor (corrupt-checkpoint). The log of the run that
wrote it shows `loss 0.0` with `grad_norm nan` some time before the save.

## How to prove

Read an earlier checkpoint of the same run: the first one that holds NaN was written after the first bad step.

## What to do

Go back to the last checkpoint without NaN and resume from there (restore-weights), after the cause of the first bad
step is removed. Train under `finitune run`: it writes no checkpoint of damaged weights.

## What does not help

`nan_to_num` on loading: the weights are gone, and zeros in their place are another model. `do_sample=False`: it turns
the error into `!!!!`. Training on from the file: NaN stays NaN. Merging the adapter: it spoils the base as well.

## References

ymcui/Chinese-LLaMA-Alpaca#383 (loss 0 in the log, NaN in the adapter), ultralytics/ultralytics#24307; measured in this
project: HF Trainer with DeepSpeed 0.18.9 in bfloat16 saves a poisoned checkpoint and ends with status 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import TensorScan, Weights
from finitune.finding import Evidence, Finding, Where

SHOWN = 5

remedies = ["restore-weights"]
public_incidents = 4
foresees = "weights"

tells: Tells = {
    "probability-tensor": (DECISIVE, "weights that are NaN give NaN logits"),
    "lost-model-used": (DECISIVE, "training had made the weights NaN before it saved them"),
    "zero-loss": (STRONG, "training had made the weights NaN, unnoticed"),
    "inference-only": (HINT, "it is noticed only when the model is used"),
    "tensors-named-nan": (STRONG, "tensors are named that hold NaN"),
    "base-model-works": (HINT, "the base model is healthy"),
    "nonfinite-loss": (HINT, "training had gone NaN before it saved"),
    "token-zero-output": (STRONG, "from NaN logits the first token is chosen"),
    "peer-copies": (-STRONG, "copies between cards are another matter"),
    "saved-nan": (STRONG, "the saved file is said to hold NaN"),
    "updates-skipped": (HINT, "weights that are NaN make every step overflow"),
    "loss-scale-collapse": (STRONG, "weights that are NaN overflow at every loss scale"),
    "finite-loss": (-STRONG, "weights that are NaN show in the loss"),
    "device-side-assert": (STRONG, "sampling from NaN trips the assertion too"),
}


def foresee(weights: Weights) -> Iterator[Finding]:
    lost = [tensor for tensor in weights.tensors if wholly_nonfinite(tensor)]
    if not lost:
        return
    adapter = all("lora_" in tensor.name for tensor in lost)
    what = "of the adapter" if adapter else "of the model"
    yield Finding(
        severity="error",  # every output is NaN from the first step on
        message=f"{len(lost)} of {len(weights.tensors)} tensors {what} are NaN or infinite throughout, as training "
        f"leaves them that went on after a NaN; the first is {lost[0].name}",
        where=Where(file=lost[0].file, tensor=lost[0].name),
        evidence={
            "tensors": len(weights.tensors), "nonfinite_throughout": len(lost),
            "names": [tensor.name for tensor in lost[:SHOWN]],
        },
    )  # fmt: skip


def weigh(weights: Weights) -> Iterator[Evidence]:
    lost = [tensor for tensor in weights.tensors if wholly_nonfinite(tensor)]
    if lost:
        yield evidence("weights", DECISIVE, f"{len(lost)} tensors are non-finite throughout, as a run leaves them")
    else:
        yield evidence("weights", -DECISIVE, "no tensor is non-finite throughout")


def wholly_nonfinite(tensor: TensorScan) -> bool:
    elements = math.prod(tensor.shape)
    return elements > 1 and tensor.nonfinite == elements
