"""Let the backward pass wait for the reduction of gradients.

## What it changes

One setting of DeepSpeed. Gradients are reduced before their buffer is filled again; steps take a little longer, most
of all over several nodes.

## When it is safe

Always. It cures a race between computing and sending, nothing else: if gradients stay non-finite, the cause is
another one.

## References

deepspeedai/DeepSpeed#5347, deepspeedai/DeepSpeed#5545, LaVi-Lab/VG-LLM#21; deepspeedai/DeepSpeed#6351 and #5241 are
cases in which it was not enough.
"""

from __future__ import annotations

from finitune.facts import Parallel
from finitune.finding import Remedy

safety = "safe"


def propose(parallel: Parallel | None = None) -> Remedy | None:
    if parallel is not None and parallel.overlap_comm is False:
        return None
    if parallel is None:
        return Remedy()  # nobody saw the setting
    return Remedy(patch={"zero_optimization.overlap_comm": False})
