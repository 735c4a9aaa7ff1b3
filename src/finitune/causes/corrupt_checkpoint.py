"""Weights on disk that are damaged: non-finite values, zeros where weights belong, files cut short.

## What happens

A download that ended early, a disk or a copy that flipped bits, a run that saved after it had gone NaN, or a delta
applied to the wrong base. The header of the file may still be intact, so the model loads without a word; one NaN in
one tensor is enough for every output to be NaN, and the first step carries it into all weights.

## How to tell

Read every weight once: single non-finite elements (whole tensors of NaN are nan-saved-in-checkpoint), one element far
beyond all others, matrices of zeros, shapes that do not fit the configuration, files cut short, shards that are not
there. The very first loss is NaN, or far above that of the published model, whatever the precision and the data.

## How to prove

Run the captured step again with the weights of an earlier step or of a fresh download: it becomes finite.

## What to do

Download the file again, or go back to the last finite checkpoint (restore-weights). A delta wants its exact base.

## What does not help

Replacing NaN by 0 on loading: it gives a plausible, wrong model. Lower precision or higher precision, clipping, a
lower learning rate: the values are wrong before the first step. A fresh optimizer: the weights stay damaged.

## References

vllm-project/vllm#53537 (a damaged shard), NikoNairre/CT-CIG#3, openvla/openvla#49, microsoft/LLaVA-Med#44 (a delta).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Model, TensorScan, Weights
from finitune.finding import Evidence, Finding, Origin, Where
from finitune.series import Series

experiments = [
    Experiment(arm="repair-weight={tensor}", expect="finite"),
    Experiment(arm="repair-weight={other_tensor}", expect="non-finite", placebo=True),
]
remedies = ["restore-weights"]
public_incidents = 7
foresees = "weights"
tells: Tells = {
    "gradient-first": (-STRONG, "a damaged weight shows in the loss"),
    "finite-loss": (-STRONG, "a damaged weight shows in the loss"),
    "tensors-named-nan": (STRONG, "tensors of the checkpoint are named that hold NaN"),
    "download-broken": (STRONG, "a file of the checkpoint is said to be damaged"),
    "memory-uninitialised": (-HINT, "weights that were never read are another matter"),
    "nonfinite-loss": (HINT, "one damaged weight makes every output NaN"),
    "wrong-base": (STRONG, "a difference that is added to another base gives garbage"),
    "from-the-start": (HINT, "no update is needed for it"),
    "base-model-fails": (HINT, "the model fails as it was loaded"),
    "first-step-lost": (HINT, "the model fails as it was loaded"),
    "probability-tensor": (STRONG, "damaged weights give NaN logits"),
    "token-zero-output": (STRONG, "damaged weights give NaN logits"),
    "sudden": (-DECISIVE, "a damaged weight shows in the first step"),
    "midway": (-DECISIVE, "a damaged weight shows in the first step"),
    "climbed": (-DECISIVE, "a damaged weight shows in the first step"),
    "second-step": (-DECISIVE, "a damaged weight shows in the first step"),
    "nan-passes": (-DECISIVE, "a damaged weight shows in the first step"),
    "loss-jumped": (-DECISIVE, "a damaged weight shows in the first step"),
    "serving": (HINT, "nothing was trained, so the weights came damaged"),
}

ODD = 100.0
"""Peak over rms beyond which one element dominates; a normal tensor of 10**8 reaches 6, one of n at most sqrt(n)."""
HUGE = 1e4
"""No weight of a released model comes near; a flipped exponent bit gives 1e4 to 1e38."""
FLIPPED = 1e6
"""Beyond it no weight was trained: the upper bits of the exponent multiply by 2**32 and more."""

# Zero on purpose: biases, fresh adapters (B of LoRA), gates that open during training.
_MAY_BE_ZERO = re.compile(r"bias$|lora_|adapter|gate$|alpha$|scale$")
_NORM = re.compile(r"(norm\w*|ln_?\w*)\.(weight|gamma)$", re.IGNORECASE)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in)\.weight$")
_FINAL_NORM = re.compile(r"^(model\.norm|(transformer\.)?ln_f|(model\.)?final_layernorm)\.weight$")
_LINEAR = re.compile(
    r"\b(\w+_proj|q_lin|k_lin|v_lin|out_lin|query_key_value|query|key|value|dense\w*|c_attn|c_proj|c_fc|fc\d|w[123qkvo]|"
    r"lm_head|wi(_\d)?|wo|attn\w*|up|down)\.weight$"
)


def foresee(weights: Weights, model: Model | None = None) -> Iterator[Finding | Needs]:
    yield from needs(model=model)
    where, counted = Where(file=weights.source), {"problems": len(weights.problems)}
    for problem in [*weights.problems, *_misfits(weights, model)]:
        yield Finding(severity="error", message=problem, where=where, evidence=counted)
    for tensor in weights.tensors:
        if tensor.nonfinite and tensor.nonfinite < math.prod(tensor.shape):
            yield _damaged(tensor, f"{tensor.nonfinite} of {{}} weights are NaN or infinite, the first at index {{}}")
        elif tensor.peak > FLIPPED and tensor.name.endswith(".weight"):
            yield _damaged(tensor, f"the largest of {{}} weights is {tensor.peak:.3g}, beyond any released model's")
    norms = [tensor for tensor in weights.tensors if _NORM.search(tensor.name)]
    offset_from_one = not any(tensor.peak for tensor in norms)  # as some families store them
    for tensor in weights.tensors:
        if not _zero(tensor):
            continue
        if _NORM.search(tensor.name) and not offset_from_one:
            yield _zeros(tensor, "a norm with zero weights erases what passes through it", norms=len(norms))
        elif len(tensor.shape) == 2 and _LINEAR.search(tensor.name):
            yield _zeros(tensor, "healthy only where layers were added on purpose as a no-op (block expansion)")


def weigh(
    weights: Weights, model: Model | None = None, origin: Origin | None = None, loss: Series | None = None,
    grad_norm: Series | None = None,
) -> Iterator[Evidence]:  # fmt: skip
    seen = loss or grad_norm  # a loss that the loop does not compute is in no recording
    if seen and (before := sum(map(math.isfinite, seen.window(len(seen), before=1)))):
        yield evidence("first bad step", -DECISIVE, f"{before} steps before it were finite, so the weights came whole")
        return
    if origin is not None and origin.phase == "optimizer":
        yield evidence("origin", -DECISIVE, f"{origin.op} made the weight bad, which was finite before")
        return
    broken = [tensor for tensor in weights.tensors if 0 < tensor.nonfinite < math.prod(tensor.shape)]
    huge = [t for t in weights.tensors if not t.nonfinite and t.rms and t.peak > min(FLIPPED, max(HUGE, ODD * t.rms))]
    if broken:
        yield evidence("weights", DECISIVE, f"{broken[0].name} holds NaN or infinity (weights: {broken[0].nonfinite})")
    elif huge:
        yield evidence("weights", DECISIVE, f"{huge[0].name} has one weight of {huge[0].peak:.3g}, far beyond others")
    elif not weights.problems and not any(_misfits(weights, model)):
        yield evidence("weights", -DECISIVE, "no tensor is damaged in part, and no weight is beyond all others")
        return
    if origin is not None and origin.phase == "parameter":
        yield evidence("origin", STRONG, "the weight itself is the first bad value")
    if seen:
        yield evidence("first bad step", STRONG, "it fails on the first step that was seen")


def _zero(tensor: TensorScan) -> bool:
    return tensor.peak == 0 and not tensor.nonfinite and bool(tensor.shape) and not _MAY_BE_ZERO.search(tensor.name)


def _misfits(weights: Weights, model: Model | None) -> Iterator[str]:
    """Shapes that the configuration beside the weights does not allow."""
    for tensor in weights.tensors if model else ():
        if model and model.vocabulary and _EMBEDDING.search(tensor.name) and tensor.shape[0] < model.vocabulary:
            yield f"{tensor.name} has {tensor.shape[0]} rows and config.json says vocab_size {model.vocabulary}"
        if model and model.hidden and _FINAL_NORM.search(tensor.name) and list(tensor.shape) != [model.hidden]:
            found = "x".join(map(str, tensor.shape))
            yield f"{tensor.name} has {found} weights and config.json says hidden size {model.hidden}"


def _damaged(tensor: TensorScan, text: str) -> Finding:
    total, first = math.prod(tensor.shape), list(tensor.first_nonfinite or [])
    seen = {"nonfinite": tensor.nonfinite, "elements": total, "first_nonfinite": first, "finite_peak": tensor.peak}
    where = Where(file=tensor.file, tensor=tensor.name)
    return Finding(severity="error", message=text.format(total, first), where=where, evidence=seen)


def _zeros(tensor: TensorScan, meaning: str, norms: int | None = None) -> Finding:
    return Finding(
        severity="warning" if norms is None else "error",
        message=f"all weights of this {'x'.join(map(str, tensor.shape))} tensor are zero; {meaning}",
        where=Where(file=tensor.file, tensor=tensor.name),
        evidence={"peak": tensor.peak, **({} if norms is None else {"norms": norms})},
    )  # fmt: skip
