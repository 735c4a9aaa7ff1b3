import time

import pytest

from finitune.chapter import causes, tells_of
from finitune.sources.cases import statements


def said(text: str, key: str = "note") -> set[str]:
    return set(statements.read({"config": {key: text}}))


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("bf16 is fine", "bfloat16-sound"),
        ("bf16 does not work", "bfloat16-bad"),
        ("fp32 gives NaN too", "float32-bad"),
        ("no NaN with fp32", "float32-sound"),
        ("one GPU ok; several fail", "several-cards-bad"),
        ("one GPU ok; several fail", "one-card-sound"),
        ("eager is not ok", "plain-attention-bad"),
    ],
)
def test_a_comparison_has_a_subject_and_a_verdict(text, slug):
    assert slug in said(text)


def test_a_clause_without_a_subject_speaks_of_the_setting():
    assert "cpu-sound" in said("works", key="cpu")
    assert "batch-of-one-sound" in said("1 ok, 2 nan", key="batch_size")
    assert "batch-of-several-bad" in said("1 ok, 2 nan", key="batch_size")


def test_off_turns_a_comparison_round():
    found = said("false fails; true works", key="packing")
    assert "packing-sound" in found
    assert "no-packing-bad" in found
    assert "packing-bad" not in found


def test_a_setting_that_is_off_says_nothing_else():
    assert "checkpointing" not in set(statements.read({"config": {"gradient_checkpointing": False}}))
    assert "checkpointing" in set(statements.read({"config": {"gradient_checkpointing": True}}))
    assert "not-clipped" in set(statements.read({"config": {"max_grad_norm": 0}}))
    assert "not-clipped" not in set(statements.read({"config": {"max_grad_norm": 0.5}}))


def test_the_words_are_quoted_and_short():
    found = statements.read({"log": ["x" * 300 + " Attempting to unscale FP16 gradients."]})
    assert len(found["unscale-fp16-gradients"]) <= statements.QUOTED


def test_no_link_is_repeated():
    found = statements.read(
        {"log": ["fix for Attempting to unscale FP16 gradients: HTTPS://evil.example/x www.evil.example"]}
    )
    assert "evil" not in found["unscale-fp16-gradients"]


@pytest.mark.parametrize("case", [{}, {"log": None, "config": []}, {"log": "one line", "config": {"a": {"b": [1]}}}])
def test_any_shape_is_read(case):
    assert isinstance(statements.read(case), dict)


@pytest.mark.parametrize(
    "text",
    ["a" * 50_000, "nan " * 12_000, "merge " * 8_000, "(" * 50_000, "no " * 16_000, "clip" * 25_000, "grad" * 25_000],
)
def test_long_text_is_read_in_time(text):
    start = time.perf_counter()
    statements.read({"title": text, "log": [text], "config": {"note": text}})
    assert time.perf_counter() - start < 5


def test_every_observation_is_weighed_by_a_chapter():
    """What nobody weighs is read in vain."""
    weighed = {slug for chapter in causes().values() for row, _, _ in tells_of(chapter) for slug in row}
    assert {*statements.PRINTED, *statements.TOLD, *statements.OFF} <= weighed
