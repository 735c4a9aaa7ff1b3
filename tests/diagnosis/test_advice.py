"""Advice that was tried in vain is named with its place and its reason, and never where it is the cure."""

from __future__ import annotations

import pytest

from finitune.chapter import causes, remedies
from finitune.diagnosis.advice import ADVICE, useless
from finitune.facts import Batching, Facts, Optimizer, Parallel, Precision
from finitune.sources.cases.trials import SPELLINGS, Trial, in_facts, in_text

CLIPPED = Trial(name="clipping", text="max_grad_norm=0.3", place="train.log:7")
SLOW = Trial(name="tiny rate", text="learning rate 1e-08", place="train.log:12")


def test_one_reason_holds_for_all_that_it_answers() -> None:
    (line,) = useless([CLIPPED, SLOW, CLIPPED], {"hidden-loss"}, "fp16-activation-overflow")
    tried = "max_grad_norm=0.3 (train.log:7), learning rate 1e-08 (train.log:12)"
    assert line == f"{tried}: the forward has already failed"


def test_a_chapter_that_is_silent_leaves_the_general_reason() -> None:
    (line,) = useless([CLIPPED], {"gradient-first"}, "untrained-output-rows")
    assert "makes every gradient NaN" in line


@pytest.mark.parametrize(
    ("trial", "seen", "cause"),
    [
        ("clipping", "climbed", "lr-too-high"),  # nothing was NaN
        ("clipping", "loss-not-finite", "missing-gradient-clipping"),
        ("tiny rate", "loss-not-finite", "lr-too-high"),
        ("loss scale", "hidden-loss", "fp16-activation-overflow"),  # the scaler did not complain
        ("loss scale", "scale-fell", "fp16-backward-overflow"),
        ("bfloat16", "hidden-loss", "quant-compute-dtype"),
        ("right padding", "nonfinite-parameter", "unmasked-padding"),
        ("no overlap", "sentinel-norm", "comm-overlap-race"),
    ],
)
def test_what_may_help_is_not_called_useless(trial: str, seen: str, cause: str) -> None:
    assert not useless([Trial(name=trial, text="x", place="y")], {seen}, cause)


@pytest.mark.parametrize(
    ("trial", "seen", "cause", "reason"),
    [
        ("loss scale", "scale-at-minimum", "fp16-activation-overflow", "the forward has already failed"),
        ("loss scale", "scale-fell", "untrained-token-embeddings", ""),
        ("bfloat16", "hidden-loss", "cudnn-sdpa-bug", "the kernel is wrong in both"),
        ("bfloat16", "hidden-loss", "moe-kernel-uninit", "what is read is not a result at all"),
        ("greedy decoding", "probability-tensor", "nan-saved-in-checkpoint", "it turns the error into `!!!!`"),
        ("nan_to_num", "probability-tensor", "nan-saved-in-checkpoint", "zeros in their place are another model"),
        ("no overlap", "sentinel-norm", "deepspeed-version-regression", "without overlap"),
        ("lower rate", "loss-not-finite", "bad-data-sample", "the record is as bad at any rate"),
    ],
)
def test_the_reason_is_the_chapters(trial: str, seen: str, cause: str, reason: str) -> None:
    (line,) = useless([Trial(name=trial, text="tried so", place="log:3")], {seen}, cause)
    assert line.startswith("tried so (log:3): ")
    assert reason in line


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("max_grad_norm=0.3,", "clipping"),
        ("  gradient_clipping ............ 1.0", "clipping"),
        ('    "gradient_clipping": 1.0,', "clipping"),
        ("  torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clipping"),
        ("gradient_clip_val: 0.5", "clipping"),
        ("    hidden = torch.nan_to_num(hidden)", "nan_to_num"),
        ("    out = model.generate(**inputs, do_sample=False)", "greedy decoding"),
        ('    "min_loss_scale": 0.5', "loss scale"),
        ("  loss_scale ................... 8", "loss scale"),
        ('    tokenizer.padding_side = "right"  # fix weird overflow issue with fp16', "right padding"),
    ],
)
def test_what_was_tried_is_read_as_it_is_spelt(text: str, name: str) -> None:
    (trial,) = in_text(text, "train.log:1")
    assert (trial.name, trial.place) == (name, "train.log:1")


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
def test_defaults_and_what_is_off_are_no_trials(text: str) -> None:
    assert not list(in_text(text, "train.log:1"))


def test_settings_are_trials_too() -> None:
    half = Precision(compute="float16", scaler="static", initial_scale=8.0, source="ds.json: fp16")
    facts = Facts(
        precision=half, optimizer=Optimizer(clip=0.1, source="args.json"),
        parallel=Parallel(kind="deepspeed", overlap_comm=False), batching=Batching(padding_side="right"),
    )  # fmt: skip
    found = {trial.name: trial.text for trial in in_facts(facts)}
    assert found.keys() == {"clipping", "loss scale", "no overlap", "right padding"}
    assert found["loss scale"] == "a loss scale fixed at 8"
    assert not list(in_facts(Facts(optimizer=Optimizer(clip=0.0), precision=Precision(compute="float16"))))
    assert [t.name for t in in_facts(Facts(precision=Precision(compute="bfloat16")))] == ["bfloat16"]


def test_every_trial_has_its_advice_and_every_cure_is_a_chapter() -> None:
    assert set(SPELLINGS) < set(ADVICE)
    assert {cure for advice in ADVICE.values() for cure in advice.cures} <= set(remedies())
    assert set(causes())
