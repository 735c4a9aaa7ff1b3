"""What was not asked is never passed: an input taken away from a run in which a cause fires leaves it open."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.causes.test_unknown_settings import world as ordinary

from finitune.chapter import causes, needs, required
from finitune.facts import (
    Activations,
    Disagreement,
    EmbeddingRows,
    Facts,
    Hardware,
    Labels,
    TensorScan,
    TokenUse,
    UnknownKey,
    Weights,
)
from finitune.finding import NotChecked
from finitune.naming import ActivationPeak, Reach
from finitune.preflight import foresee

WORLDS = 200
GROUPS = [field.name for field in dataclasses.fields(Facts)]
FORESEEING = [name for name, chapter in causes().items() if chapter.function("foresee")]


def world(rng: random.Random) -> Facts:
    """Any run: settings from pools, and in each group now and then what a cause looks for."""
    known = {name: value for name, value in ordinary(rng).items() if name in GROUPS}
    name = rng.choice(("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight"))
    rms = rng.choice((0.02, 1e-3, 0.5))
    scan = TensorScan(
        name=name, dtype="bfloat16", shape=[rng.choice((4, 200)), 4], nonfinite=rng.choice((0, 0, 3, 16)),
        peak=rng.choice((rms, 20 * rms)), rms=rms, overflow=rng.choice((0, 0, 2)), underflow=rng.choice((0, 0, 16)),
    )  # fmt: skip
    other = dataclasses.replace(scan, name="model.embed_tokens.weight", rms=2 * rms)
    reach = Reach(tensor="vpm.encoder.layers.3.mlp.fc1.weight", row=7, value=1e6)
    peak = ActivationPeak(module="model.layers.0.mlp", what=rng.choice(("output", "query . key")), token=3, value=9e4)
    ids, eager = np.arange(10), rng.random() < 0.25
    short = EmbeddingRows(
        tensor="e", ids=ids, rms=np.full(10, rng.choice((0.02, 1e-9))), median_rms=0.02, lost_in_cast=np.zeros(10),
        dtype="bfloat16",
    )  # fmt: skip
    optimizer = dataclasses.replace(
        known["optimizer"], warmup_steps=rng.choice((0, 10, 10_000)), lr=rng.choice((1e-6, 2e-5, 1e-3, 0.1)),
        lora=rng.choice((True, False, None)),
        name=rng.choice(("adamw_torch", "adamw_bnb_8bit", "sgd", None)), max_steps=rng.choice((100, None)),
    )  # fmt: skip
    adapter = dataclasses.replace(known["adapter"], trainable=rng.choice((None, ["lm_head"])))
    return Facts(**{
        **known,
        "optimizer": optimizer,
        "adapter": adapter,
        "model": dataclasses.replace(
            known["model"], path="m", dtype=rng.choice(("float16", "bfloat16")), tied=rng.choice((True, False)),
            experts=rng.choice((None, 8)), experts_per_token=1, renormalised=True, layers=2, rope_theta=1e4,
            family=rng.choice(("llama", "gemma2", "t5", "qwen2", "llava")),
        ),
        "training": dataclasses.replace(
            known["training"], chat_template=rng.choice(("llama3", "chatml", "alpaca", None)), reentrant=True,
            model_name=rng.choice(("Qwen/Qwen2-7B-Instruct", "own/base", "llava-1.5")),
            framework=rng.choice(("transformers", "trl", "ludwig")),
        ),
        "precision": dataclasses.replace(
            known["precision"], min_scale=rng.choice((1.0, 2.0**12, 0.1)), cpu=rng.choice((None, True)),
            initial_scale=rng.choice((1.0, 2.0**16, 2.0**24)), float32_modules=None, source="a.json: dtype",
        ),
        "parallel": dataclasses.replace(
            known["parallel"], communication_dtype=rng.choice(("fp16", "fp32", "bf16")), world=rng.choice((8, 256)),
        ),
        "batching": dataclasses.replace(known["batching"], max_length=rng.choice((64, 1088, 16384)), pad_token=None),
        "attention": dataclasses.replace(
            known["attention"],
            implementation="eager" if eager else rng.choice(("sdpa", "flash_attention_2", "xformers")),
        ),
        "vocabulary": dataclasses.replace(
            known["vocabulary"], template_markers=rng.choice(([], ["<|im_start|>"])), size=rng.choice((8, 120)),
            pad_id=rng.choice((2, 3)), eos_id=2,
        ),
        "hardware": Hardware(name=rng.choice(("A100", "V100", "H100", "Apple MPS")), bfloat16=rng.random() < 0.6),
        "versions": {
            **known["versions"],
            "transformers": rng.choice(("4.4.0", "4.31.0", "4.46.0")),
            "trl": rng.choice(("0.15.0", "0.24.0")),
            "torch": rng.choice(("2.5.0", "2.13.0")),
            "flash-attn": rng.choice(("2.0.0", "2.6.1")), "xformers": "0.0.16",
        },
        "tokens": TokenUse(
            ids=np.array([2, 3, rng.choice((5, 150))]), counts=np.ones(3, int), first=np.ones(3, int), sequences=64,
            pad_id=rng.choice((0, 150)),
        ),
        "rows": short, "head_rows": short,
        "labels": Labels(supervised=np.array([0, 5])),
        "weights": Weights(
            tensors=rng.choice(([scan], [scan, other])), reaches=rng.choice(([], [reach])),
            problems=rng.choice(((), ("a.safetensors: cut short",))),
        ),
        # computed only where weights stand out or eager attention stores its products
        "activations": Activations(first=[peak] if eager or scan.outlying else [], padding=[], ids=ids),
        "disagreements": [Disagreement(key="optimizer.lr", values=["1", "2"], sources=["a: lr", "b: lr"])],
        "unknown_keys": [UnknownKey(file="a.json", key="bp16", near=["bf16"])],
    })  # fmt: skip


def less(facts: Facts) -> Iterator[tuple[str, Facts]]:
    """The same run without one input, or without the version of one package."""
    for name in GROUPS:
        yield name, dataclasses.replace(facts, **{name: None})
    for package in facts.versions or {}:
        fewer = {key: value for key, value in (facts.versions or {}).items() if key != package}
        yield f"versions.{package}", dataclasses.replace(facts, versions=fewer)


@pytest.mark.slow
def test_taking_an_input_away_from_a_run_in_which_a_cause_fires_never_makes_it_pass() -> None:
    rng = random.Random(0)
    fired: set[str] = set()
    for number in range(5 * WORLDS):
        facts = world(rng)
        found = {finding.cause for finding in foresee(facts).findings}
        if number >= WORLDS and found <= fired:
            continue  # only for a cause that has not fired yet
        fired |= found
        for what, fewer in less(facts):
            passed = found & set(foresee(fewer).passed)
            assert not passed, f"without {what} passes {passed}"
    assert fired == set(FORESEEING), "each cause fires in some of the runs"


def test_fires_with_a_word_on_the_version_that_is_missing() -> None:
    rng = random.Random(1)
    facts = next(one for one in iter(lambda: world(rng), None) if _fires(one, "comm-overlap-race"))
    entries = foresee(dataclasses.replace(facts, versions=None)).not_checked
    assert (
        NotChecked(input="versions", why="comm-overlap-race: version of deepspeed unknown, give --requirements")
        in entries
    )
    listed = foresee(dataclasses.replace(facts, versions={"torch": "2.6.0"}), requirements="r.txt").not_checked
    assert NotChecked(input="versions", why="comm-overlap-race: no exact version of deepspeed in r.txt") in listed


def _fires(facts: Facts, cause: str) -> bool:
    return cause in {finding.cause for finding in foresee(facts).findings}


def test_stays_quiet_about_what_a_run_does_not_have_where_its_files_were_read() -> None:
    facts = dataclasses.replace(world(random.Random(2)), quantization=None)
    assert "quant-compute-dtype" in foresee(facts).nothing_to_say
    missing = [NotChecked(input="config", why="a.sh names zero2.json, which is not here")]
    result = foresee(facts, missing)
    assert "quant-compute-dtype" not in {*result.nothing_to_say, *result.passed}
    assert "quant-compute-dtype" in result.not_asked["config"]


@pytest.mark.parametrize("name", FORESEEING)
def test_every_parameter_is_read(name: str) -> None:
    """A parameter that nobody reads would only make the chapter count as asked."""
    import ast
    import inspect
    import textwrap

    function = causes()[name].function("foresee")
    assert function
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    parameters: set[str] = set(inspect.signature(function).parameters)
    assert parameters <= read
    says = causes()[name].ask("foresee", {})
    assert required(function) or says.needs, "a chapter that needs nothing would always be passed"


def test_needs_names_what_is_none() -> None:
    given: dict[str, Any] = {"model": None, "weights": 0, "tokens": None}
    assert [one.input for one in needs(**given)] == ["model", "tokens"]
