"""Take the accelerator or node that computes wrong numbers out of the job.

## What it changes

Nothing in the run: the same job goes on from finite weights on other hardware. The suspect is tested with the
vendor's diagnostics before it is used again.

## When it is safe

Always, but it proves nothing by itself: a rare event stays away for a while on any card. The proof is the suspect
failing a repeated computation that others pass.

## References

hiyouga/LLaMA-Factory#9170, jade-hpc-gpu/jade-hpc-gpu.github.io#194.
"""

from __future__ import annotations

safety = "advice"
