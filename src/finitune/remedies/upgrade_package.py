"""Install a release in which the defect is fixed.

## What it changes

One package of the environment. The settings, the data and the model stay as they are.

## When it is safe

When the rest of the environment accepts the new release: try it in a copy of the environment, and run a few steps of
the same seed in both. Numbers may differ in the last digits, curves may not.

## References

deepspeedai/DeepSpeed#5242 (bisected by its users), kohya-ss/sd-scripts#523, pytorch/pytorch#139298.
"""

from __future__ import annotations

import shlex

from finitune.finding import Finding, Remedy

safety = "advice"


def propose(finding: Finding | None = None) -> Remedy:
    """The command, where the evidence of the finding names the package and the first release without the defect."""
    package = finding.evidence.get("package") if finding else None
    fixed = finding.evidence.get("fixed_in") if finding else None
    command = shlex.join(["pip", "install", f"{package}>={fixed}"]) if package and fixed else None
    return Remedy(command=command)
