"""Attention takes another kernel where its own is wrong, or where eager scores leave float16; else it is left alone."""

from __future__ import annotations

import math

import pytest
import torch
from tests.monitor.heal.attention import BAD, KERNEL, broken_torch_kernel, eager_in_float16, in_own_kernel, sharpened
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.gym.loop import train
from finitune.monitor.heal.forwards import run_within
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.replay.attention import kernel_of, on_copies, take_kernel
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.repairs.repair import repair


def healed(run, directory, times):
    with float16_on_cpu(), watch(run.model, run.optimizer, run_dir=directory, mode="heal"):
        losses = list(sharpened(run, times))
    return losses, Recording.load(directory)


def proved(directory):
    bad = next(one for one in diagnose(directory).incidents if one.level == "incident")
    return bad.action, bad.causes[0].cause, bad.causes[0].proved


def states(recording):
    return [(event["remedy"], event["state"]) for event in recording.events("remedy")]


def test_a_kernel_with_a_wrong_backward_is_replaced_by_torchs(tmp_path, capsys):
    run = in_own_kernel()
    losses, recording = healed(run, tmp_path / "run", 60.0)
    assert states(recording) == [("math-attention", "applied"), ("math-attention", "kept")]
    assert proved(tmp_path / "run") == ("healed", "flash-attention-bug", True)
    assert kernel_of(run.model) == "sdpa"
    assert all(map(math.isfinite, losses))
    said = capsys.readouterr().err
    assert f"sdpa attention from now on (was {KERNEL})" in said
    (healed_by,) = repair(from_run=tmp_path / "run").by_hand
    assert (healed_by.remedy.patch, list(healed_by.steps)) == ({"attn_implementation": "sdpa"}, [BAD])


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_torchs_own_kernel_is_replaced_by_mathematics(tmp_path):
    with broken_torch_kernel():
        run = in_own_kernel("sdpa")
        losses, recording = healed(run, tmp_path / "run", 60.0)
    right = in_own_kernel("sdpa")
    assert states(recording) == [("math-attention", "applied"), ("math-attention", "kept")]
    assert kernel_of(run.model) == "sdpa", "the checkpoint is as it was"
    assert recording.events("remedy")[0]["targets"] == ["attention"]
    assert losses[-1] == pytest.approx(list(sharpened(right, 60.0))[-1], rel=0.02)


def test_eager_scores_beyond_float16_are_kept_in_float32_by_the_fused_kernel(tmp_path):
    run = eager_in_float16()
    losses, recording = healed(run, tmp_path / "run", 600.0)
    assert states(recording) == [("fused-attention", "applied"), ("fused-attention", "kept")]
    assert proved(tmp_path / "run") == ("healed", "fp16-activation-overflow", True)
    assert [step for step, loss in enumerate(losses, 1) if not math.isfinite(loss)] == [BAD]
    assert kernel_of(run.model) == "eager", "what a checkpoint is written from"
    (healed_by,) = repair(from_run=tmp_path / "run").by_hand
    assert healed_by.remedy.patch == {"attn_implementation": "sdpa"}


@pytest.mark.parametrize("build", [lambda: in_own_kernel("sdpa"), lambda: in_own_kernel("eager"), in_own_kernel])
def test_stays_quiet_where_the_kernel_gives_finite_numbers(build, tmp_path):
    run, alone = build(), build()
    losses, recording = healed(run, tmp_path / "run", 4.0)
    assert not recording.events("remedy", "incident")
    assert losses == list(sharpened(alone, 4.0))


def test_stays_quiet_where_no_other_attention_would_do(tmp_path):
    """The overflow is in the queries themselves."""
    run = eager_in_float16()
    with torch.no_grad():
        for name, p in run.model.named_parameters():
            if name.endswith("q_proj.weight"):
                p.fill_(3e4)
    with float16_on_cpu(), watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        next(train(run))
    applied = {name for name, _ in states(Recording.load(tmp_path / "run")) if name}
    assert "fused-attention" not in applied


def test_the_placebo_runs_the_same_kernel_on_copies():
    run, seen = in_own_kernel(), []
    batch = next(iter(run.batches))
    before = run.model(**batch).loss
    with on_copies(run.model):
        hook = run.model.model.layers[0].self_attn.register_forward_hook(lambda *_: seen.append(1))
        torch.testing.assert_close(run.model(**batch).loss, before, rtol=0, atol=0)
        hook.remove()
    assert seen


def test_a_kernel_that_is_not_there_changes_nothing():
    run = in_own_kernel()
    with pytest.raises(ValueError, match="does not run with none-such attention"):
        take_kernel(run.model, "none-such")
    assert kernel_of(run.model) == KERNEL
    with pytest.raises(ValueError, match="none of transformers"):
        take_kernel(nn.Linear(2, 2), "sdpa")


def test_a_forward_that_the_program_has_replaced_since_is_left_alone():
    module = nn.Linear(2, 2)
    undo = run_within([module], torch.no_grad)
    assert not module(torch.ones(2)).requires_grad
    module.forward = lambda x: x
    undo()
    assert module.forward(1) == 1
