"""Messages of a log that are an incident by themselves."""

from __future__ import annotations

from collections.abc import Mapping

FATAL: Mapping[str, str] = {
    "scale-at-minimum": "loss-scale-collapse",
    "probability-tensor": "nonfinite-logits",
    "token-zero-output": "nonfinite-logits",
    "unscale-fp16-gradients": "refused",
    "token-out-of-range": "index-out-of-range",
    "target-out-of-range": "index-out-of-range",
    "device-side-assert": "device-assert",
    "ecc-error": "hardware-error",
    "illegal-access": "illegal-access",
    "nonfinite-parameter": "nonfinite-weights",
    "stopped-by-nan": "nonfinite-loss",
    "nonfinite-gradient-check": "nonfinite-gradient",
    "anomaly": "nonfinite-gradient",
    "untrained-tokens": "refused",
    "tokenization-mismatch": "rows-ignored",
    "no-supervised-token": "rows-ignored",
    "no-sample-left": "rows-ignored",
    "std-of-one": "nonfinite-loss",
    "checkpoint-without-gradient": "zero-gradient",
    "no-gradient-path": "refused",
    "engine-config-mismatch": "refused",
    "eval-loss-nan": "nonfinite-evaluation",
    "no-inf-checks": "zero-gradient",
}
"""Messages that are an incident by themselves, and its symptom; the first that stands in the log counts."""
