"""One symptom, several causes: the check that separates them.

The rows follow "Same symptom, different cause" of the incident taxonomy. What a sign speaks for is said in the chapters
of `causes/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
    "std-of-one": "nonfinite-loss",
    "checkpoint-without-gradient": "zero-gradient",
    "no-gradient-path": "refused",
    "engine-config-mismatch": "refused",
    "eval-loss-nan": "nonfinite-evaluation",
    "no-inf-checks": "zero-gradient",
}
"""Messages that are an incident by themselves, and its symptom; the first that stands in the log counts."""

_AT_SCALE_ONE = (
    "is there overflow at loss scale 1? Run one step unscaled: finitune run -- COMMAND tells which value overflows "
    "first, and in forward or backward"
)
_ROWS = "count the supervised tokens of each row: finitune check --model DIR --data FILE"
_EVALUATION = "count the supervised tokens of each evaluation batch; then evaluate one in float32"
_RATES = "the learning rate of every parameter group, and the trend of grad_norm before the climb"
_IN_BFLOAT16 = (
    "one batch with eager attention and without DeepSpeed; count its supervised tokens; compare embedding row norms: "
    "finitune check --model DIR --data FILE"
)
_OTHER_DTYPE = "the same batch in float32 or bfloat16 on the same device: finitune run -- COMMAND"
_SCAN = "scan the saved weights: finitune check --model DIR; if they are finite, run a forward on one card in float32"
_LARGEST_ID = (
    "compare the largest token id of the data with the rows of the embedding: finitune check --model DIR --data FILE"
)
_PADDING = (
    "the same batch with batch_size 1 (no padding), then with the padding on the other side and compute dtype float32"
)
_REDUCTION = (
    "count the optimizer's parameter groups: the root of their number stands for a norm that was not finite; then run "
    "one batch without DeepSpeed (or with overlap_comm false): a gradient that is finite there was spoilt on the way"
)
_LOGITS = (
    "are the logits of one forward pass finite? Token 0 is what NaN decodes to; then scan the saved weights: finitune "
    "check --model DIR"
)
_TRAINED = (
    "print the dtype of the parameters that are trained and of the optimizer's state, then take the step with another "
    "optimizer (SGD): finitune run -- COMMAND"
)
_LARGEST = (
    "which gradient makes up the norm? finitune run -- COMMAND; compare embedding row norms: finitune check --model "
    "DIR --data FILE"
)
_MOVED = (
    "did any weight change in a step, and does every trained parameter get a gradient? Compare them before and after: "
    "finitune run -- COMMAND"
)
_REPLAY = "replay the step: is the same batch finite, and is it the same rank each time? finitune run -- COMMAND"
_FIRST_GRADIENT = (
    "which gradient is the first that is not finite, and at padding positions or not? finitune run -- COMMAND"
)
CHECKS: tuple[tuple[frozenset[str], str], ...] = tuple(
    (frozenset(signs.split()), check)
    for signs, check in (
        ("probability-tensor", _SCAN),
        ("token-zero-output", _LOGITS),
        ("token-out-of-range", _LARGEST_ID),
        ("device-side-assert", "run one step with CUDA_LAUNCH_BLOCKING=1 or on the CPU, which names the index"),
        ("nonfinite-parameter", _PADDING),
        ("unscale-fp16-gradients", _TRAINED),
        ("huge-norm", _LARGEST),
        ("loss-repeats", _MOVED),
        ("zero-loss-zero-gradient", _ROWS),
        ("zero-loss-finite-gradient", _ROWS),
        ("evaluation-only", _EVALUATION),
        ("eval-loss-nan", _EVALUATION),
        ("scale-fell", _AT_SCALE_ONE),
        ("scale-at-minimum", _AT_SCALE_ONE),
        ("climbed", _RATES),
        ("diverged", _RATES),
        ("sentinel-norm", _REDUCTION),
        ("sudden", _REPLAY),
        ("second-step", _TRAINED),
        ("gradient-first", _FIRST_GRADIENT),
        ("computes-bfloat16 hidden-loss", _IN_BFLOAT16),
        ("computes-bfloat16 loss-not-finite", _IN_BFLOAT16),
        ("hidden-loss", _OTHER_DTYPE),
        ("loss-not-finite", _OTHER_DTYPE),
    )
)
"""Signs that must be there -> the one check that separates what is left; the first row that fits."""


def next_check(signs: Collection[str]) -> str | None:
    """The discriminating check for these signs."""
    return next((check for needed, check in CHECKS if needed <= set(signs)), None)
