"""Advice that was tried in vain is named with its place and its reason, and never where it is the cure."""

from __future__ import annotations

import pytest

from finitune.chapter import causes, remedies
from finitune.diagnosis.advice import ADVICE, useless
from finitune.facts import Batching, Facts, Optimizer, Parallel, Precision
from finitune.observations import Observation
from finitune.sources.cases.workarounds import SPELLINGS, in_facts, in_text

CLIPPED = Observation(name="tried-clipping", text="max_grad_norm=0.3", place="train.log:7")
SLOW = Observation(name="tried-tiny-learning-rate", text="learning rate 1e-08", place="train.log:12")


def test_one_reason_holds_for_all_that_it_answers() -> None:
    (line,) = useless([CLIPPED, SLOW, CLIPPED], {"hidden-loss"}, "fp16-activation-overflow")
    tried = "max_grad_norm=0.3 (train.log:7), learning rate 1e-08 (train.log:12)"
    assert line == f"{tried}: the forward has already failed"


def test_a_chapter_that_is_silent_leaves_the_general_reason() -> None:
    (line,) = useless([CLIPPED], {"gradient-first"}, "untrained-output-rows")
    assert "makes every gradient NaN" in line


@pytest.mark.parametrize(
    ("tried", "seen", "cause"),
    [
        ("tried-clipping", "climbed", "lr-too-high"),  # nothing was NaN
        ("tried-clipping", "nonfinite-loss", "missing-gradient-clipping"),
        ("tried-tiny-learning-rate", "nonfinite-loss", "lr-too-high"),
        ("tried-loss-scale", "hidden-loss", "fp16-activation-overflow"),  # the scaler did not complain
        ("tried-loss-scale", "loss-scale-collapse", "fp16-backward-overflow"),
        ("tried-bfloat16", "hidden-loss", "quant-compute-dtype"),
        ("tried-right-padding", "nonfinite-parameter", "unmasked-padding"),
        ("tried-no-overlap", "sentinel-norm", "comm-overlap-race"),
    ],
)
def test_what_may_help_is_not_called_useless(tried: str, seen: str, cause: str) -> None:
    assert not useless([Observation(name=tried, text="x", place="y")], {seen}, cause)


@pytest.mark.parametrize(
    ("tried", "seen", "cause", "reason"),
    [
        ("tried-loss-scale", "scale-at-minimum", "fp16-activation-overflow", "the forward has already failed"),
        ("tried-loss-scale", "loss-scale-collapse", "untrained-token-embeddings", ""),
        ("tried-bfloat16", "hidden-loss", "cudnn-sdpa-bug", "the kernel is wrong in both"),
        ("tried-bfloat16", "hidden-loss", "moe-kernel-uninit", "what is read is not a result at all"),
        ("tried-greedy-decoding", "probability-tensor", "nan-saved-in-checkpoint", "it turns the error into `!!!!`"),
        ("tried-nan-to-num", "probability-tensor", "nan-saved-in-checkpoint", "zeros in their place are another model"),
        ("tried-no-overlap", "sentinel-norm", "deepspeed-version-regression", "without overlap"),
        ("tried-lower-learning-rate", "nonfinite-loss", "bad-data-sample", "the record is as bad at any rate"),
    ],
)
def test_the_reason_is_the_chapters(tried: str, seen: str, cause: str, reason: str) -> None:
    (line,) = useless([Observation(name=tried, text="tried so", place="log:3")], {seen}, cause)
    assert line.startswith("tried so (log:3): ")
    assert reason in line


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("max_grad_norm=0.3,", "tried-clipping"),
        ("  gradient_clipping ............ 1.0", "tried-clipping"),
        ('    "gradient_clipping": 1.0,', "tried-clipping"),
        ("  torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "tried-clipping"),
        ("gradient_clip_val: 0.5", "tried-clipping"),
        ("    hidden = torch.nan_to_num(hidden)", "tried-nan-to-num"),
        ("    out = model.generate(**inputs, do_sample=False)", "tried-greedy-decoding"),
        ('    "min_loss_scale": 0.5', "tried-loss-scale"),
        ("  loss_scale ................... 8", "tried-loss-scale"),
        ('    tokenizer.padding_side = "right"  # fix weird overflow issue with fp16', "tried-right-padding"),
    ],
)
def test_what_was_tried_is_read_as_it_is_spelt(text: str, name: str) -> None:
    (tried,) = in_text(text, "train.log:1")
    assert (tried.name, tried.place) == (name, "train.log:1")


@pytest.mark.parametrize(
    "text",
    [
        "max_grad_norm=0.0,",
        "max_grad_norm=None",
        "gradient_clipping ............ 0",
        "min_loss_scale ............... 1",
        "loss_scale ................... 0",
        "initial_scale_power=16",
        "do_sample=True",
        "padding_side='left'",
        "grad_norm: 1.0",
    ],
)
def test_defaults_and_what_is_off_are_no_trieds(text: str) -> None:
    assert not list(in_text(text, "train.log:1"))


def test_settings_are_trieds_too() -> None:
    half = Precision(compute="float16", scaler="static", initial_scale=8.0, source="ds.json: fp16")
    facts = Facts(
        precision=half, optimizer=Optimizer(clip=0.1, source="args.json"),
        parallel=Parallel(kind="deepspeed", overlap_comm=False), batching=Batching(padding_side="right"),
    )  # fmt: skip
    found = {tried.name: tried.text for tried in in_facts(facts)}
    assert found.keys() == {"tried-clipping", "tried-loss-scale", "tried-no-overlap", "tried-right-padding"}
    assert found["tried-loss-scale"] == "a loss scale fixed at 8"
    assert not list(in_facts(Facts(optimizer=Optimizer(clip=0.0), precision=Precision(compute="float16"))))
    assert [t.name for t in in_facts(Facts(precision=Precision(compute="bfloat16")))] == ["tried-bfloat16"]


def test_every_tried_has_its_advice_and_every_cure_is_a_chapter() -> None:
    assert set(SPELLINGS) < set(ADVICE)
    assert {cure for advice in ADVICE.values() for cure in advice.cures} <= set(remedies())
    assert set(causes())
