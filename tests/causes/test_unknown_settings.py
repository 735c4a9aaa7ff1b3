"""What was not told is no evidence against any cause: taking a fact away adds none, whatever the rest of the run is."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from finitune import facts
from finitune.chapter import ask, causes
from finitune.diagnosis.observed_settings import of_facts
from finitune.facts import EmbeddingRows, Facts, Labels, TensorScan, TokenUse, Weights
from finitune.finding import Origin
from finitune.series import Series

WORLDS = 300
DTYPES = ("float16", "bfloat16", "float32")
POOLS: dict[str, tuple[Any, ...]] = {
    "compute": DTYPES, "parameters": DTYPES, "dtype": DTYPES, "compute_dtype": DTYPES, "full_eval": DTYPES,
    "scaler": ("dynamic", "static", "none"), "initial_scale": (1.0, 8.0, 2.0**16), "min_scale": (0.5, 1.0),
    "scale_window": (10, 1000), "hysteresis": (1, 2), "family": ("llama", "qwen2", "gemma", "t5"),
    "norm_eps": (1e-5, 1e-12), "vocabulary": (8, 100), "name": ("adamw_torch", "adamw_bnb_8bit", "sgd"),
    "lr": (1e-8, 2e-5, 5e-3, 0.1), "eps": (1e-8, 1e-4), "clip": (0.0, 1.0), "accumulation": (1, 8), "batch": (1, 4),
    "schedule": ("linear", "constant"), "max_steps": (100, 10_000), "schedule_steps": (100, 10_000), "epochs": (1.0,),
    "zero_stage": (0, 1, 2, 3), "reduce_bucket_size": (50_000_000, 500_000_000), "world": (1, 8), "nodes": (1, 4),
    "communication_dtype": ("fp16", "fp32", "bf16"), "grad_accum_dtype": ("fp32", "bf16"),
    "offload_optimizer": ("cpu", "none"), "offload_parameters": ("cpu", "none"), "bits": (4, 8),
    "rank": (8, 64), "alpha": (16.0, 1024.0), "padding_side": ("left", "right"), "pad_id": (0, 2), "eos_id": (2, 3),
    "implementation": ("eager", "sdpa", "flash_attention_2"), "framework": ("transformers", "ludwig"),
    "method": ("sft", "grpo"), "chat_template": ("alpaca", "chatml"), "label_smoothing": (0.0, 0.1),
    "generations": (1, 8), "model_name": ("Qwen/Qwen2-7B", "own/base"), "max_length": (16, 4096),
}  # fmt: skip
KINDS = {
    "Parallel": ("deepspeed", "ddp", "none"),
    "Quantization": ("nf4", "int8"),
    "Adapter": ("lora", "dora", "none"),
}
VERSIONS = {
    "deepspeed": ("0.12.5", "0.14.5", "0.18.2", "0.19.7"), "transformers": ("4.31.0", "4.46.0", "4.57.0"),
    "torch": ("2.5.1", "2.6.0"), "bitsandbytes": ("0.38.0", "0.45.0"), "flash-attn": ("2.3.0", "2.7.0"),
}  # fmt: skip
CARDS = (("A100", True), ("V100", False), ("Apple MPS", True))


def group(kind: type[Any], rng: random.Random) -> Any:
    """The group with a value for every field that a pool or a bool can give."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name == "kind":
            given["kind"] = rng.choice(KINDS[kind.__name__])
        elif field.name in POOLS and not (kind.__name__ == "Vocabulary" and field.name == "chat_template"):
            given[field.name] = rng.choice(POOLS[field.name])
        elif "bool" in str(field.type):
            given[field.name] = rng.random() < 0.5
    return kind(**given)


def world(rng: random.Random) -> dict[str, Any]:
    """Everything that a chapter may read, of one run."""
    names = ("Precision", "Model", "Optimizer", "Parallel", "Quantization", "Adapter", "Attention", "Batching")
    groups = {name.lower(): group(getattr(facts, name), rng) for name in (*names, "Training", "Vocabulary")}
    ids, card = np.arange(10), rng.choice(CARDS)
    sizes = np.where(rng.random() < 0.5, 0.02, 1e-8) * np.ones(10)
    rows = EmbeddingRows(tensor="e", ids=ids, rms=sizes, median_rms=0.02, lost_in_cast=np.zeros(10), dtype="float16")
    scan = TensorScan(
        name="a.weight", dtype="float16", shape=[4, 4], nonfinite=rng.choice((0, 3, 16)), peak=0.1, rms=0.02,
        underflow=rng.choice((0, 16)),
    )  # fmt: skip
    known = Facts(
        **groups,
        hardware=facts.Hardware(name=card[0], bfloat16=card[1]),
        versions={name: rng.choice(some) for name, some in VERSIONS.items()},
        tokens=TokenUse(ids=ids, counts=np.ones(10, int), first=np.ones(10, int), sequences=4),
        rows=rows,
        head_rows=rows,
        labels=Labels(supervised=np.array([rng.choice((0, 5))])),
        weights=Weights(tensors=[scan]),
        disagreements=[],
        unknown_keys=[],
    )
    losses = rng.choice(([4.0, 3.0, 2.0], [4.0, 3.0, 9.0, 60.0], [float("nan")]))
    series = {
        name: Series(range(1, len(v) + 1), v)
        for name, v in (("loss", losses), ("grad_norm", [1.0] * 60), ("lr", [1e-5] * 3), ("loss_scale", [2.0**12] * 3))
    }
    op = rng.choice(
        (
            "aten.mm",
            "aten._cudnn_attention_backward",
            "aten.rsqrt",
            "aten._softmax",
            "aten.sum",
            "aten._flash_attention_backward",
        )
    )
    module = rng.choice(("model.layers.1.mlp", "vision_tower.layers.3"))
    phase = rng.choice(("forward", "backward", "parameter", "optimizer"))
    return {
        **known.by_name(), **series, "signals": series, "repeats": rng.choice((True, False)),
        "symptoms": rng.choice((set(), {"nonfinite-loss"}, {"divergence"})), "incident": {"bad": ["w"], "tensors": 9},
        "origin": Origin(module=module, op=op, phase=phase, dtype=rng.choice(DTYPES), values="3 nan"),
    }  # fmt: skip


def less(inputs: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same run with one group, or one fact of a group, not told."""
    for field in dataclasses.fields(Facts):
        known = inputs.get(field.name)
        if known is None:
            continue
        yield field.name, {**inputs, field.name: None}
        if isinstance(known, dict):
            for key in known:
                fewer = {k: v for k, v in known.items() if k != key}
                yield f"{field.name}[{key}]", {**inputs, field.name: fewer}
        elif dataclasses.is_dataclass(known):
            for one in dataclasses.fields(known):
                if one.default is None and getattr(known, one.name) is not None:
                    without = dataclasses.replace(known, **{one.name: None})  # type: ignore[type-var]
                    yield f"{field.name}.{one.name}", {**inputs, field.name: without}


def terms(weigh: Callable[..., Any], inputs: dict[str, Any]) -> tuple[float, float, list[str]]:
    """Bits that speak against the cause, all bits, and the texts."""
    answer = ask(weigh, inputs)
    assert not answer.broken, answer.broken
    bits = [term.bits for term in answer.results]
    return sum(b for b in bits if b < 0), sum(bits), [term.text for term in answer.results]


@pytest.mark.parametrize("cause", [name for name, chapter in causes().items() if chapter.function("weigh")])
def test_less_knowledge_adds_no_evidence_against(cause: str) -> None:
    weigh = causes()[cause].function("weigh")
    assert weigh
    rng = random.Random(0)
    for _ in range(WORLDS):
        inputs = {name: value for name, value in world(rng).items() if name in inspect.signature(weigh).parameters}
        against, whole, _ = terms(weigh, inputs)
        for what, fewer in less(inputs):
            left, rest, texts = terms(weigh, fewer)
            assert left >= against or rest >= whole, f"without {what}: {texts}"


def test_less_knowledge_adds_no_circumstance() -> None:
    """Where only the dtype of the weights is told, it stands for that of the products."""
    rng = random.Random(0)
    for _ in range(WORLDS):
        inputs = world(rng)
        known = {field.name: inputs[field.name] for field in dataclasses.fields(Facts) if field.name in inputs}
        full = set(of_facts(Facts(**known)))
        for what, fewer in less(known):
            if what != "precision.compute":
                assert set(of_facts(Facts(**fewer))) <= full, what
