"""Mistakes that other guards have made, each with its test: those below, and those that PITFALLS names elsewhere."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.monitor.loop import VALUES, Loop, clip_imported_early
from tests.symptoms.runs import levels, seen, series

from finitune.monitor.probes.measurement import any_bad
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.symptoms import loss_spike

TESTS = Path(__file__).parents[1]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

PITFALLS = {
    "0 times NaN is NaN: a step that is scaled to zero": (
        "monitor/test_pitfalls.py", "test_a_bad_gradient_changes_nothing",
    ),
    "a NaN blinds the window of a statistic": (
        "monitor/test_pitfalls.py", "test_a_nan_does_not_hide_the_spike_after_it",
    ),
    "NaN > threshold is false": (
        "monitor/test_pitfalls.py", "test_no_comparison_with_a_nan_decides",
    ),
    "a logger that hides the NaN": (
        "integrations/test_transformers.py", "test_a_bad_step_is_found_and_the_printed_loss_is_corrected",
    ),
    "infinities are ignored": (
        "monitor/test_gate.py", "test_wherever_the_bad_value_comes_in",
    ),
    "clipping destroys the evidence": (
        "monitor/test_pitfalls.py", "test_clipping_does_not_hide_whose_gradient_was_bad",
    ),
    "rank 0 alone decides": (
        "monitor/test_ranks.py", "test_a_fault_on_one_rank_is_discarded_on_both",
    ),
    "a guard of one dtype or one value": (
        "monitor/test_pitfalls.py", "test_a_bad_gradient_changes_nothing",
    ),
    "a skipped step advances the schedule": (
        "monitor/test_schedules.py", "test_a_per_step_schedule_does_not_advance_on_a_discarded_step",
    ),
    "the guard does not survive a resumption": (
        "monitor/test_resumed.py", "test_the_recording_is_continued_where_the_checkpoint_was_made",
    ),
    "the guard sits in the loss function": (
        "monitor/test_pitfalls.py", "test_another_loss_function_is_guarded_too",
    ),
    "silent recovery": (
        "monitor/test_pitfalls.py", "test_each_action_is_one_line_and_one_event",
    ),
    "random numbers captured too early": (
        "monitor/test_healthy_is_untouched.py", "test_dropout_is_drawn_the_same_in_every_rerun",
    ),
    "copies of the weights, and a host sync per tensor": (
        "device/test_budget.py", "test_a_healthy_step_stays_within_the_budget",
    ),
    "hooks that break checkpointing": (
        "monitor/origin/test_locate.py", "test_a_real_model",
    ),
    "hooks that break shared modules and dict outputs": (
        "monitor/test_pitfalls.py", "test_modules_that_are_shared_and_outputs_in_a_dict",
    ),
    "watching changes the run": (
        "monitor/test_healthy_is_untouched.py", "test_bit_for_bit_and_silent",
    ),
    "thresholds frozen from the first steps": (
        "symptoms/test_divergence.py", "test_stays_quiet_on_a_warm_up_and_a_first_peak",
    ),
    "repair without consent or undo": (
        "test_repair_configs.py", "test_patch_then_undo_is_the_same_file",
    ),
    "the first step is unprotected": (
        "monitor/test_gate.py", "test_a_fault_at_the_first_step_leaves_no_state_behind",
    ),
    "confidence that nobody measured": (
        "diagnosis/test_cases.py", "test_confidence_is_not_printed_where_it_was_not_measured",
    ),
    "no placebo": (
        "monitor/heal/test_policy.py", "test_a_remedy_is_proved_by_what_it_does_and_by_what_a_placebo_does_not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_every_pitfall_has_its_test(pitfall):
    file, name = PITFALLS[pitfall]
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bad_gradient_changes_nothing(dtype, value, tmp_path):
    loop = Loop(dtype=dtype, value=value, make=lambda own: torch.optim.AdamW(own, lr=1e-2, eps=1e-4))
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
        loop.step()
        weights = [p.detach().clone() for p in loop.model.parameters()]
        moments = [{k: v.clone() for k, v in loop.optimizer.state[p].items()} for p in loop.model.parameters()]
        loop.step()
    assert all(map(torch.equal, weights, loop.model.parameters()))
    for before, p in zip(moments, loop.model.parameters(), strict=True):
        after = loop.optimizer.state[p]
        assert all(torch.equal(before[key], after[key]) for key in before), "the count of steps too"


def test_a_nan_does_not_hide_the_spike_after_it():
    rng = np.random.default_rng(0)
    values = 2.0 * np.exp(0.05 * rng.standard_normal(300))
    values[200], values[205] = math.nan, 100.0
    assert 206 in dict(levels(seen(loss_spike.see, series(values))))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, -3e38, 1e-45, math.nan, math.inf, -math.inf]), min_size=1, max_size=6))
def test_no_comparison_with_a_nan_decides(values):
    """The plainest verdict, which stands where nothing else can be measured."""
    gradients = [torch.tensor([value]) for value in values]
    assert bool(any_bad([torch.tensor(1.0)], gradients)) == (not all(map(math.isfinite, values)))


@pytest.mark.parametrize("value", VALUES)
def test_clipping_does_not_hide_whose_gradient_was_bad(value, tmp_path):
    """With one infinite gradient the norm is infinite: clipping makes all others 0 and the bad one NaN."""
    loop = Loop(value=value, clip=clip_imported_early)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(4):
            loop.step()
    (incident,) = Recording.load(tmp_path / "run").events("incident")
    assert incident["bad"] == ["2.weight"]
    assert math.isfinite(incident["loss"])


def test_another_loss_function_is_guarded_too(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step, loss in enumerate([F.mse_loss, F.l1_loss, lambda a, b: ((a - b) ** 2).sum().sqrt() * 0 / 0]):
            optimizer.zero_grad()
            loss(model(torch.randn(5, 4)), torch.randn(5, 3)).backward()
            optimizer.step()
            assert step < 3
    assert [event["step"] for event in Recording.load(tmp_path / "run").events("incident")] == [3]
    assert all(p.isfinite().all() for p in model.parameters())


def test_each_action_is_one_line_and_one_event(tmp_path, capsys):
    loop = Loop(value=math.nan, bad=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(4):
            loop.step()
    (incident,) = Recording.load(tmp_path / "run").events("incident")
    assert incident["action"] == "skipped-step"
    assert capsys.readouterr().err.count("Update discarded") == 1


class Shared(torch.nn.Module):
    """One layer is called twice, and the output is a dict of tuples."""

    def __init__(self, twice):
        super().__init__()
        self.layer = self.again = torch.nn.Linear(4, 4)
        self.twice = twice

    def forward(self, x):
        hidden = self.layer(x)
        out = self.again(hidden.log() if self.twice else hidden)
        return {"parts": (out, hidden)}


@pytest.mark.parametrize("twice", [False, True])
def test_modules_that_are_shared_and_outputs_in_a_dict(twice, tmp_path):
    torch.manual_seed(0)
    model = Shared(twice)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4))["parts"][0].square().mean().backward()
            optimizer.step()
    origins = [event["origin"] for event in Recording.load(tmp_path / "run").events("origin")]
    assert [origin["op"] for origin in origins[:1]] == (["aten.log"] if twice else [])
