import time
from importlib import resources

import pytest

from finitune.chapter import causes, tells_of
from finitune.sources.cases import statements


def said(text: str, key: str = "note") -> set[str]:
    return set(statements.read({"config": {key: text}}))


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("bf16 is fine", "bfloat16-works"),
        ("bf16 does not work", "bfloat16-fails"),
        ("fp32 gives NaN too", "float32-fails"),
        ("no NaN with fp32", "float32-works"),
        ("one GPU ok; several fail", "several-cards-fails"),
        ("one GPU ok; several fail", "one-card-works"),
        ("sgd is not bad", "sgd-works"),
    ],
)
def test_a_comparison_has_a_subject_and_a_verdict(text, slug):
    assert slug in said(text)


def test_a_clause_without_a_subject_speaks_of_the_setting():
    assert "cpu-works" in said("works", key="cpu")
    assert "batch-of-one-works" in said("1 ok, 2 nan", key="batch_size")
    assert "batch-of-several-fails" in said("1 ok, 2 nan", key="batch_size")


def test_off_turns_a_comparison_round():
    assert {"no-overlap-works", "overlap-fails"} <= said("false works; true fails", key="overlap_comm")
    found = said("false fails; true works", key="packing")
    assert "packing-works" in found
    assert "packing-fails" not in found


def test_a_setting_that_is_off_says_nothing_else():
    assert "checkpointing" not in set(statements.read({"config": {"gradient_checkpointing": False}}))
    assert "checkpointing" in set(statements.read({"config": {"gradient_checkpointing": True}}))
    assert "not-clipped" in set(statements.read({"config": {"max_grad_norm": 0}}))
    assert "not-clipped" not in set(statements.read({"config": {"max_grad_norm": 0.5}}))


def test_eager_is_said_of_attention_and_of_what_is_not_compiled():
    assert "uncompiled-works" in said("inductor gives nan, eager is fine")
    assert "plain-attention-works" not in said("inductor gives nan, eager is fine")
    assert "plain-attention-works" in said("flash gives nan, eager is fine")
    assert "uncompiled-works" not in said("flash gives nan, eager is fine")


def test_a_message_that_is_quoted_is_known_as_in_a_log():
    assert "unscale-fp16-gradients" in said("it says: Attempting to unscale FP16 gradients.")


def test_the_words_are_quoted_and_short():
    one = statements.read({"title": "x" * 300 + " Attempting to unscale FP16 gradients."})["unscale-fp16-gradients"]
    assert len(one.text) <= statements.QUOTED
    assert one.place == "the case"


def test_no_link_is_repeated():
    found = statements.read({"title": "Attempting to unscale FP16 gradients: HTTPS://evil.example/x www.evil.example"})
    assert "evil" not in found["unscale-fp16-gradients"].text


@pytest.mark.parametrize(
    "title",
    [
        "loss is nan after adding a LoRA delta to the base model",
        "ok at 64 GPUs",
        "the model_bad branch",
        "chat model used as a judge",
    ],
)
def test_a_word_that_is_no_mechanism_says_nothing(title):
    weighed = {name for chapter in causes().values() for name, bits, _ in tells_of(chapter) if abs(bits) > 1}
    assert not set(statements.read({"title": title})) & weighed


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
    weighed = {name for chapter in causes().values() for name, _, _ in tells_of(chapter)}
    assert {*statements.WRITTEN, *statements.OFF} <= weighed
    compared = {name for name in weighed if name.endswith(("-works", "-fails"))}
    assert all(any(subject in name for name in compared) for subject in statements.SUBJECTS)


def test_every_phrase_stands_under_a_sentence_that_says_the_mechanism():
    sentence = ""
    for line in (resources.files("finitune") / "sources/cases/statements.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            sentence = line
        elif not line or line.startswith("["):
            sentence = ""
        else:
            assert sentence.endswith("."), line
            assert len(sentence.split()) > 4, line
