"""Causes that are known from words and logs alone: each with a case of it, and one that it may be taken for."""

import pytest

from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case

CASES = {
    "bad-data-sample": (
        {"log": ["WARNING: Target sequences include empty tokenid"], "config": {"note": "always at the same step"}},
        {"config": {"assistant_only_loss": "labels are all -100, no target is left"}},
    ),
    "compiler-kernel-silent-error": (
        {"config": {"kernel": "triton cross entropy, offsets in int32"},
         "log": ["CUDA error: an illegal memory access was encountered"]},
        {"config": {"torch_compile": True, "control": "eager is fine, inductor gives NaN"}},
    ),
    "compiler-miscompile": (
        {"config": {"torch_compile": True, "control": "eager is fine, inductor gives NaN"}},
        {"config": {"attn_implementation": "flash_attention_2 gives NaN, eager is fine"}},
    ),
    "custom-loss-or-norm-fp16": (
        {"config": {"loss": "custom loss", "norm": "the sum of squares in float16", "fp16": True}},
        {"config": {"loss": "custom loss", "bf16": True}},
    ),
    "eval-only-nan": (
        {"log": ["{'loss': 1.2, 'grad_norm': 0.5}", "{'eval_loss': nan}"]},
        {"log": ["{'loss': nan, 'grad_norm': nan}", "{'eval_loss': nan}"]},
    ),
    "fp8-scaling": (
        {"config": {"recipe": "fp8 delayed scaling", "control": "bf16 converges"}},
        {"config": {"load_in_8bit": True, "control": "bf16 converges"}},
    ),
    "inference-multi-gpu-or-dtype": (
        {"config": {"NCCL_P2P_DISABLE": "1 cures", "note": "one GPU works"}},
        {"config": {"note": "it fails on one node only, exclude that node"}},
    ),
    "library-version-regression": (
        {"framework": "torchtune", "config": {"note": "0.5.0 is fine, 0.6.0 fails", "other": "works in TRL"}},
        {"framework": "DeepSpeed", "config": {"zero_stage": 1, "note": "DeepSpeed 0.12.0 is fine, 0.12.5 fails"}},
    ),
    "mask-sentinel-overflow": (
        {"config": {"mask": "additive, torch.finfo(dtype).min added twice"}},
        {"config": {"mask": "rows are fully masked", "padding_side": "left"}},
    ),
    "merge-precision-loss": (
        {"config": {"merge": "merged into the 4-bit base", "note": "unmerged adapter is fine"}},
        {"config": {"merge": "merged, tie_word_embeddings was lost on saving"}},
    ),
    "moe-kernel-uninit": (
        {"model": "Qwen3-30B-A3B", "config": {"expert_parallel": 8, "grouped_mm": True}},
        {"model": "Qwen3-30B-A3B", "config": {"router_dtype": "bf16", "norm_topk_prob": True}},
    ),
    "moe-router": (
        {"model": "Mixtral-8x7B", "config": {"router_dtype": "bf16", "norm_topk_prob": True}},
        {"model": "Qwen3-30B-A3B", "config": {"expert_parallel": 8, "grouped_mm": True}},
    ),
    "nan-weights-scaler-loop": (
        {"log": [*(f"step {n} loss {3 - n / 40}" for n in range(40)), "step 40 loss nan, loss scale: 0.0"]},
        {"log": ["Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."]},
    ),
    "resume-state-lost": (
        {"config": {"resume": "optimizer state not loaded", "note": "loss spikes after resuming"}},
        {"config": {"resume": "true"}, "log": ["ValueError: Attempting to unscale FP16 gradients."]},
    ),
    "rl-ratio-or-kl-overflow": (
        {"framework": "TRL GRPO", "config": {"kl_coef": 0.1, "note": "importance ratio explodes"}},
        {"framework": "TRL GRPO", "log": ["UserWarning: std(): degrees of freedom is <= 0."]},
    ),
}  # fmt: skip

CONFUSED = ("custom-loss-or-norm-fp16", "eval-only-nan", "nan-weights-scaler-loop")
"""A more frequent cause shows the same."""


def first(case: dict[str, object]) -> str:
    return diagnose_case(case).incidents[0].causes[0].cause


def test_every_cause_that_neither_foresees_nor_weighs_is_here() -> None:
    alone = {name for name, one in causes().items() if not (one.function("foresee") or one.function("weigh"))}
    assert alone <= set(CASES)


@pytest.mark.parametrize("cause", CASES)
def test_fires_on_a_case_of_it(cause: str) -> None:
    shown = [one.cause for one in diagnose_case(CASES[cause][0]).incidents[0].causes]
    assert shown.index(cause) <= (2 if cause in CONFUSED else 0)


@pytest.mark.parametrize("cause", CASES)
def test_stays_quiet_on_what_it_may_be_taken_for(cause: str) -> None:
    assert first(CASES[cause][1]) != cause
