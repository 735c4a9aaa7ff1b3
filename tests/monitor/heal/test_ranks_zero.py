"""Two ranks under DeepSpeed's ZeRO 1 and 2, each holding a part of the float32 weights, gradients and moments."""

from __future__ import annotations

import math
import re

import pytest
import torch
from tests.monitor.heal.zero import remedies_of, trained_by_zero, undone

from finitune.recording import Recording

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STAGES = [1, 2]
ROUNDING = {"float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3}
OFFLOADED = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
SCALE = {"float16": 256.0}


@pytest.mark.parametrize(
    ("stage", "dtype", "ranks"),  # each pair of values once
    [
        (1, "float32", [1]), (2, "float32", [0, 1]), (1, "bfloat16", [0, 1]), (2, "bfloat16", [1]),
        (1, "float16", [1]), (2, "float16", [0, 1]),
    ],
)  # fmt: skip
def test_each_rank_leaves_its_lost_records_out_of_the_step(stage, dtype, ranks, tmp_path):
    what = {"stage": stage, "dtype": dtype, "lost": [9, 13], "ranks": ranks, "clip": 0.5}
    history, weights, said = trained_by_zero(tmp_path / "healed", **what)
    _, never_lost, _ = trained_by_zero(tmp_path / "whole", **what, watched=False)
    done = [(e["remedy"], e["step"], e["state"]) for e in remedies_of(tmp_path / "healed")]
    assert done == [("drop-samples", 9, "for its step"), ("drop-samples", 13, "for its step")]
    assert Recording.load(tmp_path / "healed" / "run").signals["skipped"].values.sum() == 0
    assert len({entry[0] for entry in history}) == len(history)
    assert sum("drop-samples: sample" in err for err in said) == 1, "one rank speaks"
    assert {entry[4] for entry in history} == {SCALE.get(dtype, 1.0)}, "no scale is lowered for what is no overflow"
    for healed, whole in zip(weights, never_lost, strict=True):
        torch.testing.assert_close(healed, whole, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize(
    ("stage", "rate", "clip", "dtype"),
    [
        (1, 10.0, 0.0, "float32"), (2, 100.0, 0.0, "float32"), (1, 100.0, 1.0, "float32"), (1, 6.0, 0.0, "float16"),
        (2, 6.0, 0.0, "float16"),
    ],
)  # fmt: skip
def test_they_take_the_steps_again_at_a_lower_rate_and_go_on_with_it(stage, rate, clip, dtype, tmp_path):
    what = {"stage": stage, "task": "language", "sgd": True, "rate": rate, "steps": 40, "clip": clip, "dtype": dtype}
    history, weights, said = trained_by_zero(tmp_path / "healed", **what)
    applied, *later = remedies_of(tmp_path / "healed")
    assert {e["remedy"] for e in (applied, *later)} == {"lower-learning-rate"}
    assert "kept" in {e["state"] for e in later}
    rates = sorted({entry[2] for entry in history}, reverse=True)
    lost = int(Recording.load(tmp_path / "healed" / "run").signals["skipped"].values.sum())
    assert lost >= 1 if dtype == "float16" else lost == 1, "how often the loss scale is halved first varies by machine"
    assert len(rates) == 40 - lost, "it waits at the steps that are discarded"
    assert rates == pytest.approx([rate * 0.999 ** (n + 1) for n in range(len(rates))])
    assert sum(entry[3] for entry in history[-5:]) / 5 < math.log(128)
    assert sum("lower-learning-rate: the last" in err for err in said) == 1, "one rank speaks"
    if dtype == "float16":
        return  # at the lower rate no step would have been lost to an overflow
    found = re.search(r"from step (\d+) on at (\S+) times", applied["text"])
    slow = what | {"slower": [int(found[1]), float(found[2])], "steps": applied["step"] - 1, "watched": False}
    _, slowly, _ = trained_by_zero(tmp_path / "slow", **slow)
    torch.testing.assert_close(weights[applied["step"] - 1], slowly[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("stage", STAGES)
def test_they_go_back_and_leave_out_the_batch_that_did_the_damage(stage, dtype, tmp_path):
    what = {"stage": stage, "sgd": True, "rate": 0.1, "gamma": 1.0, "steps": 62, "odd": [40], "ranks": [1]}
    what |= {"dtype": dtype, "power": 1, "unit": 1e4 if dtype == "float32" else 1e3}
    history, weights, said = trained_by_zero(tmp_path, **what)
    _, without, _ = trained_by_zero(tmp_path / "without", **what, leaves_out=[40], watched=False)
    applied, kept = remedies_of(tmp_path)
    assert [e["remedy"] for e in (applied, kept)] == ["rollback-and-skip"] * 2
    assert [e["state"] for e in (applied, kept)] == ["applied", "kept"]
    assert applied["places"] == ["the batch of step 40"]
    assert max(entry[3] for entry in history[40:46]) > 1e3
    torch.testing.assert_close(weights[applied["step"] - 1], without[applied["step"] - 2], rtol=1e-5, atol=1e-6)
    assert sum("rollback-and-skip: back to the weights" in err for err in said) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_undo_restores_the_exact_state_of_a_lower_rate(stage, tmp_path):
    what = {"stage": stage, "task": "language", "sgd": True, "rate": 10.0, "steps": 16}
    trained_by_zero(tmp_path, **what, undo="lower_learning_rate")
    _put_back(tmp_path)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("stage", STAGES)
def test_undo_restores_the_exact_state_of_steps_that_are_taken_again(stage, dtype, tmp_path):
    """With Adam, whose moments are parts too."""
    what = {"stage": stage, "dtype": dtype, "rate": 0.5, "gamma": 1.0, "steps": 14, "undo_at": 12}
    trained_by_zero(tmp_path, **what)
    _put_back(tmp_path)


def _put_back(tmp_path):
    for before, after, back, again in undone(tmp_path):
        assert before != after == again
        assert back == before


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_healthy_run_is_the_same_bit_for_bit(stage, dtype, tmp_path):
    what = {"stage": stage, "accumulate": 2, "clip": 1.0, "dtype": dtype}
    watched, _, _ = trained_by_zero(tmp_path / "watched", **what)
    alone, _, _ = trained_by_zero(tmp_path / "alone", **what, watched=False)
    assert watched == alone
    assert not Recording.load(tmp_path / "watched" / "run").events("remedy", "incident")


def test_where_it_cannot_be_done_it_is_advice_and_says_why(tmp_path):
    _, _, said = trained_by_zero(tmp_path, config=OFFLOADED, lost=[9], steps=12, ranks=[1])
    assert {e["state"] for e in remedies_of(tmp_path)} == {"advice"}
    assert any("not healed" in err and "drop-samples: the optimizer is offloaded to the host" in err for err in said)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_where_one_rank_cannot_look_for_its_samples_nothing_is_done_and_nobody_waits(dtype, tmp_path):
    what = {"lost": [9], "dtype": dtype, "fails": "finitune.monitor.heal.remedies.drop_samples.guilty"}
    history, _, _ = trained_by_zero(tmp_path, **what)
    assert {e["state"] for e in remedies_of(tmp_path)} == {"advice"}
    assert history[8][0] == history[7][0], "the step is discarded"
