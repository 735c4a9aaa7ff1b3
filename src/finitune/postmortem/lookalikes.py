"""One symptom, several causes: how far each sign of a log speaks for a cause, and the check that separates them.

The rows follow "Same symptom, different cause" and "Signatures worth coding" of the incident taxonomy. Each is a
general mechanism, with its reason beside it; bits are set by hand (log2 of a likelihood ratio) and not calibrated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

FLOAT16_CAUSES = (
    "fp16-activation-overflow", "fp16-backward-overflow", "fp16-trainable-weights", "adam-eps-underflow-fp16",
    "loss-scale-exhaustion", "normal-scaler-warmup", "vision-tower-fp16", "norm-eps-underflow-fp16",
    "fp16-underflow-in-weights", "label-smoothing-fp16-sum",
)  # fmt: skip
RATE_CAUSES = ("lr-too-high", "lora-scale-or-init", "missing-gradient-clipping")
"""What needs a real step size to do harm."""


def _all(names: Collection[str], bits: float) -> dict[str, float]:
    return dict.fromkeys(names, bits)


SPEAKS: Mapping[str, Mapping[str, float]] = {
    # A NaN in the loss was made in the forward, or lies in weights that an earlier update spoilt.
    "loss-not-finite": {
        "fp16-activation-overflow": 2, "fully-masked-attention-rows": 2, "all-labels-ignored": 1.5,
        "unmasked-padding": 2,
        "corrupt-checkpoint": 1, "quant-compute-dtype": 1, "lr-too-high": 1, "comm-overlap-race": 1,
        "untrained-token-embeddings": 1, "adam-eps-underflow-fp16": 1, "fp16-backward-overflow": -1,
    },
    # The filter of the trainer makes it 0; what made the NaN stays open.
    "hidden-loss": {
        "fp16-activation-overflow": 2.5, "fully-masked-attention-rows": 2, "fp16-trainable-weights": 1,
        "quant-kernel-hardware": 2, "logging-hides-nan": 2, "comm-overlap-race": 2, "deepspeed-version-regression": 1,
        "untrained-token-embeddings": 1, "cudnn-sdpa-bug": 1, "flash-attention-bug": 1, "fp16-backward-overflow": 1,
        "all-labels-ignored": 1, "adam-eps-underflow-fp16": 1,
    },
    # The update was taken: float16 would have skipped it, so the dtype is another, and the gradient was spoilt.
    "sentinel-norm": {
        "comm-overlap-race": 5, "deepspeed-version-regression": 5, "missing-nonfinite-guard": 5, "logging-hides-nan": 2,
        "untrained-token-embeddings": 2.5, "cudnn-sdpa-bug": 2, "flash-attention-bug": 1.5,
        "all-labels-ignored": 1, **_all(FLOAT16_CAUSES, -5),
    },
    # A trainer that guards its division gives 0 and no gradient for a batch without a target.
    "zero-loss-zero-gradient": {
        "all-labels-ignored": 9, "chat-template-mismatch": 4, "gradient-checkpointing": 4, "pad-eos-label-masking": 2,
        **_all(FLOAT16_CAUSES, -4), **_all(RATE_CAUSES, -4), "comm-overlap-race": -4,
    },
    # NaN loss with finite gradients: the mean over no target; the filter prints 0.
    "zero-loss-finite-gradient": {
        "all-labels-ignored": 8, "logging-hides-nan": 4, "chat-template-mismatch": 3, "rl-group-std-zero": 1,
        **_all(FLOAT16_CAUSES, -3), "comm-overlap-race": -3,
    },
    # The forward was sound, the backward was not: ignored (pad) rows leave the loss but not the backward.
    "gradient-first": {
        "fp16-backward-overflow": 6, "untrained-token-embeddings": 4, "fp16-activation-overflow": 2,
        "cudnn-sdpa-bug": 3,
        "flash-attention-bug": 2, "comm-overlap-race": 2, "deepspeed-version-regression": 2, "unmasked-padding": 1,
        "fully-masked-attention-rows": 1, "all-labels-ignored": -5, "corrupt-checkpoint": -4,
        "adam-eps-underflow-fp16": -4, "vision-tower-fp16": -2,
    },
    # Nothing has been learned yet, so nothing that training does can be the reason.
    "from-the-start": {
        "fp16-activation-overflow": 1, "corrupt-checkpoint": 1, "fully-masked-attention-rows": 1, "unmasked-padding": 1,
        "untrained-token-embeddings": 1, "quant-kernel-hardware": 1, "hardware-fault-sdc": -3,
        **_all(RATE_CAUSES, -3), "bf16-update-stagnation": -3,
    },
    # What lies in weights, tokens that every row has, or settings, shows at once.
    "sudden": {
        "comm-overlap-race": 3, "deepspeed-version-regression": 1, "hardware-fault-sdc": 4, "all-labels-ignored": 2,
        "fully-masked-attention-rows": -2, "unmasked-padding": -3, "untrained-token-embeddings": -2,
        "corrupt-checkpoint": -5, "uninitialised-weights": -5, "fp16-activation-overflow": -1,
        "adam-eps-underflow-fp16": -4, "fp16-trainable-weights": -3, "quant-kernel-hardware": -3, "lr-too-high": -2,
    },
    "climbed": {
        "lr-too-high": 6, "missing-gradient-clipping": 3.5, "lora-scale-or-init": 3, "low-precision-grad-reduce": 1,
        "fp16-activation-overflow": -2, "all-labels-ignored": -5, "comm-overlap-race": -2, "corrupt-checkpoint": -5,
        "untrained-token-embeddings": -3, "fully-masked-attention-rows": -4,
    },
    "diverged": {
        "lr-too-high": 6, "lora-scale-or-init": 4, "missing-gradient-clipping": 4, "low-precision-grad-reduce": 2,
        "optimizer-8bit-bug": 2, "all-labels-ignored": -4, **_all(FLOAT16_CAUSES, -2),
    },
    # With a rate of 1e-8 no update moves a weight: six public incidents.
    "tiny-rate": {**_all(RATE_CAUSES, -6), "adam-eps-underflow-fp16": -1, "fp16-activation-overflow": 0.5},
    # Only a loss scaler skips; a step that is skipped at every scale is no matter of the scale.
    "rate-frozen": {
        "fp16-activation-overflow": 2, "fp16-backward-overflow": 2, "untrained-token-embeddings": 1,
        "nan-saved-in-checkpoint": 1, "comm-overlap-race": -3, "deepspeed-version-regression": -2,
    },
    # Whoever skips a step leaves the schedule where it is, so nobody skipped.
    "rate-advancing": {
        "missing-nonfinite-guard": 1, "comm-overlap-race": 1.5, "deepspeed-version-regression": 1,
        "loss-scale-exhaustion": -2, "fp16-activation-overflow": -0.5, "fp16-backward-overflow": -0.5,
    },
    # Overflow whatever the scale: a value beyond float16 in the forward, or a gradient without bound.
    "scale-fell": {
        "fp16-activation-overflow": 4, "untrained-token-embeddings": 5, "fp16-backward-overflow": 5,
        "loss-scale-exhaustion": 3, "nan-saved-in-checkpoint": 1, "corrupt-checkpoint": 1, "vision-tower-fp16": 1,
        "normal-scaler-warmup": -5, "comm-overlap-race": -6, "all-labels-ignored": -5,
        "deepspeed-version-regression": -3,
        **_all(RATE_CAUSES, -3),
    },
    # What overflows in the forward shows in the loss.
    "sound-loss": {
        "untrained-token-embeddings": 2, "fp16-backward-overflow": 2, "fp16-activation-overflow": -1.5,
        "vision-tower-fp16": -2, "nan-saved-in-checkpoint": -4, "corrupt-checkpoint": -3, "all-labels-ignored": -2,
    },
    "evaluation-only": {
        "all-labels-ignored": 5, "label-smoothing-fp16-sum": 5, "fp16-activation-overflow": 2, "unmasked-padding": 2,
        "fully-masked-attention-rows": 1, "comm-overlap-race": -6, **_all(RATE_CAUSES, -6),
        "untrained-token-embeddings": -3, "fp16-backward-overflow": -6,
    },
    "message:scale-at-minimum": {
        "fp16-activation-overflow": 4, "untrained-token-embeddings": 5, "fp16-backward-overflow": 5,
        "loss-scale-exhaustion": 3, "normal-scaler-warmup": -6,
    },
    # The sampling function got NaN: from weights that training left, or from a forward that overflows.
    "message:probability-tensor": {
        "fp16-activation-overflow": 3, "nan-saved-in-checkpoint": 6, "vision-tower-fp16": 3, "corrupt-checkpoint": 3,
        "quant-compute-dtype": 1, "tokenizer-vocab-mismatch": 1, "missing-nonfinite-guard": 1,
        "adam-eps-underflow-fp16": 1,
    },
    "message:unscale-fp16-gradients": {"fp16-trainable-weights": 14},
    "message:no-inf-checks": {"gradient-checkpointing": 3, "fp16-trainable-weights": 2},
    "message:token-out-of-range": {"tokenizer-vocab-mismatch": 10, "resized-embeddings-init": 4},
    "message:target-out-of-range": {"tokenizer-vocab-mismatch": 8, "resized-embeddings-init": 3},
    "message:device-side-assert": {
        "tokenizer-vocab-mismatch": 6, "resized-embeddings-init": 3, "nan-saved-in-checkpoint": 2,
        "fp16-activation-overflow": 1,
    },
    "message:ecc-error": {"hardware-fault-sdc": 14},
    "message:illegal-access": {"backend-kernel-numerics": 4, "tokenizer-vocab-mismatch": 3, "hardware-fault-sdc": 2},
    "message:cudnn-attention": {"cudnn-sdpa-bug": 7},
    "message:cudnn-error": {"cudnn-sdpa-bug": 2, "hardware-fault-sdc": 1},
    # Ludwig: 4-bit weights compute in float16 unless told, and short rows are filled on the left with id 0, attended.
    "message:nonfinite-parameter": {
        "unmasked-padding": 6, "quant-compute-dtype": 5, "fp16-activation-overflow": 2,
        "fully-masked-attention-rows": 2,
        "untrained-token-embeddings": 1, "missing-nonfinite-guard": 2, "comm-overlap-race": -5,
    },
    "message:untrained-tokens": {"untrained-token-embeddings": 12, "chat-template-mismatch": 3},
    "message:tokenization-mismatch": {"all-labels-ignored": 9, "chat-template-mismatch": 8},
    "message:no-supervised-token": {"all-labels-ignored": 10, "chat-template-mismatch": 4},
    "message:empty-target": {"all-labels-ignored": 6},
    "message:std-of-one": {"rl-group-std-zero": 12},
    "message:checkpoint-without-gradient": {"gradient-checkpointing": 12},
    "message:no-gradient-path": {"gradient-checkpointing": 9},
    "message:engine-config-mismatch": {"zero-config-error": 10, "config-disagreement": 9},
    "message:nonfinite-gradient-check": {"comm-overlap-race": -2, "fully-masked-attention-rows": 1},
    "float16": {
        "fp16-activation-overflow": 2, "fp16-backward-overflow": 2, "fp16-trainable-weights": 1,
        "quant-compute-dtype": 1,
        "adam-eps-underflow-fp16": 1, "comm-overlap-race": -2, "bf16-update-stagnation": -8, "cudnn-sdpa-bug": -1,
    },
    "bfloat16": {
        **_all(FLOAT16_CAUSES, -8), "comm-overlap-race": 1.5, "deepspeed-version-regression": 1, "cudnn-sdpa-bug": 1,
        "flash-attention-bug": 0.5, "untrained-token-embeddings": 0.5, "quant-compute-dtype": -2,
        "missing-nonfinite-guard": 1,
    },
    "float32": {**_all(FLOAT16_CAUSES, -8), "cudnn-sdpa-bug": -3, "flash-attention-bug": -4, "quant-compute-dtype": -3},
    # What reduces gradients in buckets is there, or is not.
    "no-deepspeed": {"comm-overlap-race": -6, "deepspeed-version-regression": -10, "zero-config-error": -8},
}  # fmt: skip
"""Sign -> cause -> bits."""

FATAL = {
    "message:scale-at-minimum": "loss-scale-collapse",
    "message:probability-tensor": "nonfinite-logits",
    "message:unscale-fp16-gradients": "refused",
    "message:token-out-of-range": "index-out-of-range",
    "message:target-out-of-range": "index-out-of-range",
    "message:device-side-assert": "device-assert",
    "message:ecc-error": "hardware-error",
    "message:illegal-access": "illegal-access",
    "message:nonfinite-parameter": "nonfinite-weights",
    "message:stopped-by-nan": "nonfinite-loss",
    "message:nonfinite-gradient-check": "nonfinite-gradient",
    "message:anomaly": "nonfinite-gradient",
    "message:untrained-tokens": "refused",
    "message:tokenization-mismatch": "rows-ignored",
    "message:no-supervised-token": "rows-ignored",
    "message:std-of-one": "nonfinite-loss",
    "message:checkpoint-without-gradient": "zero-gradient",
    "message:no-gradient-path": "refused",
    "message:engine-config-mismatch": "refused",
    "message:eval-loss-nan": "nonfinite-evaluation",
    "message:no-inf-checks": "zero-gradient",
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
    "run one batch without DeepSpeed (or with overlap_comm false): a gradient that is finite there was spoilt by the "
    "reduction"
)
_REPLAY = "replay the step: is the same batch finite, and is it the same rank each time? finitune run -- COMMAND"
_FIRST_GRADIENT = (
    "which gradient is the first that is not finite, and at padding positions or not? finitune run -- COMMAND"
)
CHECKS: tuple[tuple[frozenset[str], str], ...] = tuple(
    (frozenset(signs.split()), check)
    for signs, check in (
        ("message:probability-tensor", _SCAN),
        ("message:token-out-of-range", _LARGEST_ID),
        ("message:device-side-assert", "run one step with CUDA_LAUNCH_BLOCKING=1 or on the CPU, which names the index"),
        ("message:nonfinite-parameter", _PADDING),
        ("message:unscale-fp16-gradients", "print the dtype of the parameters that are trained"),
        ("zero-loss-zero-gradient", _ROWS),
        ("zero-loss-finite-gradient", _ROWS),
        ("evaluation-only", _EVALUATION),
        ("message:eval-loss-nan", _EVALUATION),
        ("scale-fell", _AT_SCALE_ONE),
        ("message:scale-at-minimum", _AT_SCALE_ONE),
        ("climbed", _RATES),
        ("diverged", _RATES),
        ("sentinel-norm", _REDUCTION),
        ("sudden", _REPLAY),
        ("gradient-first", _FIRST_GRADIENT),
        ("bfloat16 hidden-loss", _IN_BFLOAT16),
        ("bfloat16 loss-not-finite", _IN_BFLOAT16),
        ("hidden-loss", _OTHER_DTYPE),
        ("loss-not-finite", _OTHER_DTYPE),
    )
)
"""Signs that must be there -> the one check that separates what is left; the first row that fits."""


def next_check(signs: Collection[str]) -> str | None:
    """The discriminating check for these signs."""
    return next((check for needed, check in CHECKS if needed <= set(signs)), None)
