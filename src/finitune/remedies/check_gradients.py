"""Have the engine look at the gradients before it uses them.

## What it changes

One setting of DeepSpeed: a step with a non-finite gradient is skipped in bfloat16 as it is in float16. One more flag
is reduced over the ranks per step.

## When it is safe

Always. Releases from 0.17.1 know the key for ZeRO 1 and 2; ZeRO 3 checks by itself from 0.19.8 and had no
such switch before. `finitune run` guards every one of them.

## References

deepspeedai/DeepSpeed#6976 (the key), deepspeedai/DeepSpeed#8035 (its default).
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet

from finitune.facts import Parallel
from finitune.finding import Remedy

safety = "safe"

READS_KEY = SpecifierSet(">=0.17.1")


def propose(parallel: Parallel | None = None, versions: Mapping[str, str] | None = None) -> Remedy | None:
    version = (versions or {}).get("deepspeed")
    unread = version is not None and not READS_KEY.contains(version, prereleases=True)
    if parallel is None or parallel.zero_stage not in (1, 2) or unread:
        return None
    return Remedy(patch={"bf16.check_grad_overflow": True})
