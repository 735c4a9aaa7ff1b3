"""PyTorch's attention through cuDNN returns NaN in the backward pass.

## What happens

`scaled_dot_product_attention` chooses a kernel by itself. On Hopper cards PyTorch 2.5.0 put cuDNN first, whose
backward pass assumed a memory layout that the gradient need not have: NaN gradients in the first steps, or a loss
that explodes after thousands. 2.5.1 put it last. Releases from 2.11 on choose it again on Hopper, where the gradient
of the query is NaN for sequence lengths that leave 64 when divided by 128, an explicit mask and very negative row
sums. bfloat16 and float16 alike.

## How to tell

torch 2.5.0, or 2.11 and later, on an H100, H200, H800, H20 or GH200, attention "sdpa". The warning "cuDNN SDPA
backward got grad_output.strides()" in stderr. The forward is finite; the first bad value is in the backward of
attention.

## How to prove

Run the captured step with attention by plain mathematics: it becomes finite. On copies of queries, keys and values the
same kernel is as bad.

## What to do

Use another kernel (disable-cudnn-attention), or replace torch 2.5.0 by 2.5.1 (upgrade-package).

## What does not help

float16 for bfloat16 or the reverse: the kernel is wrong in both. A lower learning rate: the gradient is NaN before the
rate is used. More padding moves the sequence length, by luck.

## References

pytorch/pytorch#139298 (2.5.0, explosion, ended by the switch), huggingface/diffusers#9768 (2.5.1 is not affected),
pytorch/pytorch#196678 (regression since 2.11, confirmed by a maintainer), hiyouga/LLaMA-Factory#7388.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Attention, Batching, Hardware
from finitune.finding import Evidence, Finding, Origin, Where

FIRST = SpecifierSet("==2.5.0")
AGAIN = SpecifierSet(">=2.11")
HOPPER = re.compile(r"\bG?H(100|200|800|20)\b")

experiments = [
    Experiment(arm="attention-math", expect="finite"),
    Experiment(arm="attention-copies", expect="non-finite", placebo=True, optional=True),
]
remedies = ["disable-cudnn-attention", "upgrade-package", "math-attention"]
public_incidents = 5
frame = "fused attention"
foresees = "torch release"

tells: Tells = {
    "cudnn-attention": (DECISIVE, "attention went through cuDNN"),
    "scaled-dot-product": (HINT, "one of its kernels is cuDNN's"),
    "new-card": (HINT, "PyTorch chooses cuDNN on Hopper and later"),
    "query-gradient-only": (HINT, "the backward of cuDNN fails first in the query"),
    "computes-float16": (-HINT, "an overflow of float16 is more frequent"),
    "explicit-mask": (HINT, "cuDNN is chosen where a mask is given"),
    "hidden-loss": (HINT, "after the bad update the loss is NaN, which is printed as 0"),
    "sentinel-norm": (STRONG, "an update was taken although the gradient norm was not finite"),
    "gradient-first": (STRONG, "the forward was finite, the backward was not"),
    "cudnn-error": (STRONG, "a call of cuDNN failed as well"),
    "computes-bfloat16": (HINT, "fused attention runs in 16 bits"),
    "computes-float32": (-STRONG, "fused attention runs in 16 bits"),
    "first-step-lost": (-STRONG, "the backward fails, not the first forward"),
}


def foresee(
    hardware: Hardware,
    versions: Mapping[str, str] | None = None,
    attention: Attention | None = None,
    batching: Batching | None = None,
) -> Iterator[Finding | Needs]:
    version = (versions or {}).get("torch")
    sdpa = attention is None or attention.implementation == "sdpa"
    if not sdpa or not HOPPER.search(hardware.name):
        return
    if version is None:
        yield Needs("versions.torch")
        return
    first = FIRST.contains(version, prereleases=True)
    length = batching.max_length if batching else None
    again = AGAIN.contains(version, prereleases=True)
    exposed = attention is not None and again and (length or 0) % 128 == 64
    if not first and not exposed:
        yield from needs(attention=attention, batching=batching) if again else ()
        return
    when = "" if first else f" for padded sequences of length {length}"
    yield Finding(
        # 2.5.0 fails in ordinary runs; the later defect needs a mask and rare values besides.
        severity="warning" if first else "info",
        message=f"torch {version} on {hardware.name} computes attention through cuDNN, whose backward can "
        f"give NaN{when}",
        where=Where(file=attention.source if attention else None, key="attn_implementation"),
        evidence={
            "package": "torch", "version": version, "hardware": hardware.name, "max_length": length,
            "affected": str(FIRST if first else AGAIN), **({"fixed_in": "2.5.1"} if first else {}),
        },
    )  # fmt: skip


def weigh(origin: Origin, versions: Mapping[str, str], hardware: Hardware) -> Iterator[Evidence]:
    if "cudnn_attention" not in origin.op:
        yield evidence("origin", -DECISIVE, f"the first bad value is in {origin.op}, not in attention through cuDNN")
        return
    yield evidence("origin", DECISIVE, f"attention through cuDNN makes the first bad value, in the {origin.phase}")
    version = versions.get("torch", "")
    if FIRST.contains(version, prereleases=True) or AGAIN.contains(version, prereleases=True):
        yield evidence("torch release", STRONG, f"torch {version} on {hardware.name} is on record for it")
