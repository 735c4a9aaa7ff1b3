"""What reviews found, for GPUs and ranks and of public programs, each with its test: those below, and those named.

A name without a path is a program of `tests/programs`, judged by its truth; a sentence says why there is no test.
"""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor import process
from finitune.monitor.process import Stopped
from finitune.monitor.replay.module_state import attributes_kept
from finitune.monitor.watch import watch

TESTS = Path(__file__).parents[1]
BUDGET = "device/test_budget.py:test_a_healthy_step_stays_within_the_budget"
OF_DEVICES = {
    "a healthy float16 warm-up is stopped": "amp_focal_warmup",
    "experiments run on one rank": "fsdp1_wrapped",
    "no budget of seconds while others wait": "monitor/test_watched_live.py:test_a_replay_does_raise",
    "a collective of all processes in every step": "uneven_two_trainings",
    "torch.save of a watched model": "saved_whole_model",
    "a watched model cannot be compiled whole or graphed": "compiled_fullgraph_hooks_free",
    "reading the graph consumes what hooks hold": "offloaded_activations",
    "an arm can end the CUDA context": "monitor/replay/test_arms.py:test_ids_that_are_no_tokens_are_not_labels",
    "the gate fails open": (
        "monitor/test_exceptions.py:test_a_fault_of_finitune_leaves_the_run_alone_and_is_said_once"
    ),
    "a run that must end does not end": "monitor/test_reviews.py:test_a_full_disk_does_not_keep_a_run_alive",
    "memory that is kept": BUDGET,
    "hooks on AccumulateGrad run in a replay": "monitor/test_reviews.py:test_hooks_of_a_reducer_run_once",
    "nothing is located under DDP": "ddp_unused_one_bad_rank",
    "hardware blamed for software": "several_backwards_per_forward",
    "several models": "ppo_two_optimizers",
    "everything copied for one float16 tensor": BUDGET,
    "ZeRO with offloaded optimizer": (
        "integrations/test_deepspeed.py:test_a_bad_gradient_is_found_on_its_step_and_changes_nothing"
    ),
    "kernels that aten does not see": "monitor/test_reviews.py:test_a_kernel_outside_of_aten_blames_its_module",
    "FSDP 1: norms and names": "fsdp1_wrapped",
    "the reduction check samples norms alone": (
        "monitor/test_reduction.py:test_fires_for_a_bucket_that_is_filled_again_while_it_is_sent"
    ),
    "withholding changes state": "monitor/test_reviews.py:test_a_discarded_step_changes_nothing_of_the_group",
    "float8 weights": "monitor/test_reviews.py:test_float8_weights_are_read",
    "last-good held by every rank": (
        "monitor/test_sharded.py:test_a_persistent_fault_ends_both_and_the_last_good_weights_are_whole"
    ),
    "an assert of the user's model is blamed on finitune": (
        "device/test_budget.py:test_a_fault_of_the_model_on_the_device_is_the_models"
    ),
    "an interrupted forward": "monitor/test_reviews.py:test_after_an_interrupted_forward_losses_are_read",
    "input buffers that are filled again": (
        "monitor/test_reviews.py:test_a_buffer_that_is_filled_again_is_no_divergence"
    ),
    "Python state of modules": "monitor/test_reviews.py:test_a_replay_leaves_the_attributes_of_modules",
    "sequence numbers of threads": (
        "monitor/replay/test_locate_backward.py:test_a_backward_that_runs_its_forward_again_names_the_module"
    ),
    "devices that are neither cpu nor cuda": "monitor/test_reviews.py:test_the_accelerator_that_is_there_is_used",
    "attention that refuses float32": "monitor/test_reviews.py:test_attention_that_refuses_float32",
    "master copies are not watched": "half_master_weights_overflow",
    "buffers cloned for each replay": "monitor/replay/test_arms.py:test_puts_everything_back",
    "everything searched for bad elements": BUDGET,
    "copies of an experiment before its limit": "monitor/replay/test_arms.py:test_update_times",
    "a norm on the CPU that is known": "it costs time on the host alone, and has not been changed",
    "one optimizer per parameter": "optimizer_in_backward_sick",
    "a log line walks the whole run": "test_printed.py:test_a_long_run_is_not_walked_at_each_line",
    "masked scores are kept": BUDGET,
    "the allocator keeps what a replay reserved": "an allocator of CUDA is needed to see it",
}
OF_PROGRAMS = {
    "pickling of a watched model": "saved_whole_model",
    "an optimizer over two modules": "chain_of_two_modules",
    "death by a non-finite value is called healthy": "monitor/test_run.py:test_what_dies_of_a_damaged_weight_names_it",
    "no diagnosis where the program's Python lacks packages": "LLaMA-Factory, litgpt and torchtune in `make strangers`",
    "the rate is blamed for float16 Adam": "half_adam_default_eps",
    "no location under DDP": "ddp_nan_weight_torchrun",
    "several optimizers on one model": "optimizer_in_backward_sick",
    "a trainer's older norm is called untrue": "test_printed.py:test_nothing_is_said_where_nothing_is_hidden",
}
REVIEW = OF_DEVICES | OF_PROGRAMS
assert (len(OF_DEVICES), len(OF_PROGRAMS)) == (39, 8)


@pytest.mark.parametrize("finding", REVIEW)
def test_every_finding_has_its_test_or_a_reason(finding):
    place = REVIEW[finding]
    if " " in place:
        return
    file, _, name = place.partition(":")
    if not name:
        assert (TESTS / "programs" / f"{file}.py").exists()
        return
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def trained(model, run_dir, *, bad=3, steps=5, value=float("nan"), optimizer=None, mode="guard"):
    """A few steps, in step `bad` with a bad input; the incidents of the recording."""
    own = optimizer or torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with watch(model, own, run_dir=run_dir, mode=mode):
        for step in range(1, steps + 1):
            x = torch.randn(3, 4)
            if step == bad:
                x[1, 2] = value
            model(x).square().mean().backward()
            own.step()
            own.zero_grad()
    return diagnose(run_dir).incidents


def test_a_full_disk_does_not_keep_a_run_alive(tmp_path, monkeypatch, capsys):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process, "save_last_good", full)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        for _ in range(20):
            (model(torch.ones(2, 4)).sum() * float("nan")).backward()
            optimizer.step()
            optimizer.zero_grad()

    with watch(model, optimizer, run_dir=tmp_path / "run"), pytest.raises(Stopped):
        train()
    assert "no checkpoint was written (OSError: [Errno 28] No space left on device)" in capsys.readouterr().err


def test_hooks_of_a_reducer_run_once(tmp_path):
    model, calls = nn.Linear(4, 4), []
    nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
    handles = [node.register_hook(lambda *_: calls.append(1)) for node in nodes]
    (incident,) = trained(model, tmp_path / "run")
    assert incident.origin is not None
    assert len(calls) == len(handles) * 5


class Kernel(torch.autograd.Function):
    """Fills an empty tensor behind torch's back, as a compiled kernel does."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        with np.errstate(invalid="ignore"):
            np.sqrt(x.detach().numpy(), out=out.numpy())
        return out

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Rooted(nn.Module):
    def forward(self, x):
        return Kernel.apply(x)


def test_a_kernel_outside_of_aten_blames_its_module(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), Rooted(), nn.Linear(4, 2))
    (incident, *_) = trained(model, tmp_path / "run", bad=None, steps=1)
    assert (incident.origin.module, incident.origin.op) == ("1", "outside aten")


class Momentum(torch.optim.Optimizer):
    """Counts steps in its group, and takes a missing gradient as zero."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.9).add_(p.grad if p.grad is not None else torch.zeros_like(p))
                p.add_(momentum, alpha=-group["lr"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_discarded_step_changes_nothing_of_the_group(value, tmp_path):
    model = nn.Linear(4, 4)
    optimizer = Momentum(model.parameters())
    trained(model, tmp_path / "run", steps=2, bad=None, optimizer=optimizer)
    weights, momentum = model.weight.detach().clone(), optimizer.state[model.weight]["momentum"].clone()
    trained(model, tmp_path / "more", steps=1, bad=1, value=value, optimizer=optimizer)
    assert torch.equal(weights, model.weight)
    assert torch.equal(momentum, optimizer.state[model.weight]["momentum"])
    assert optimizer.param_groups[0]["step"] == 2


class Float8(nn.Module):
    def __init__(self):
        super().__init__()
        self.packed = nn.Parameter(torch.randn(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x @ self.packed.float())


def test_float8_weights_are_read(tmp_path):
    model = Float8()
    (incident,) = trained(model, tmp_path / "input")
    assert incident.origin.phase == "input"
    model.packed.data.view(torch.uint8)[1, 1] = 0x7F
    incidents = trained(model, tmp_path / "weight", bad=None, steps=1)
    assert incidents[0].origin.tensor == "packed"
    assert incidents[0].causes[0].cause == "corrupt-checkpoint"


class Interrupted(nn.Linear):
    interrupts = False

    def forward(self, x):
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return super().forward(x)


def test_after_an_interrupted_forward_losses_are_read(tmp_path):
    model = nn.Sequential(Interrupted(4, 4))
    model[0].interrupts = True
    with contextlib.suppress(KeyboardInterrupt):
        trained(model, tmp_path / "first")
    (incident,) = trained(model, tmp_path / "run")
    assert (incident.step, incident.symptom, incident.origin.phase) == (3, "nonfinite-loss", "input")


def test_a_buffer_that_is_filled_again_is_no_divergence(tmp_path):
    torch.manual_seed(0)
    model, buffer = nn.Linear(4, 4), torch.zeros(8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(60):
            buffer.copy_(torch.randn(8, 4) * (30 if step in (40, 41) else 1))
            model(buffer).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [i for i in diagnose(tmp_path / "run").incidents if i.level == "incident"] == []


class Counting(nn.Module):
    """Keeps counts, histories and statistics as Python keeps them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.calls, self.history, self.by_kind = 0, [], {"sums": []}
        self.running, self.peak = torch.zeros(4), torch.zeros(1)

    def forward(self, x):
        self.calls += 1
        self.history.append(self.calls)
        self.by_kind["sums"].append(float(x.nan_to_num().sum()))
        self.running.add_(x.nan_to_num().mean(0))
        self.peak = torch.maximum(self.peak, x.nan_to_num().abs().max().reshape(1))
        self.last_shape = x.shape
        return self.inner(x)


def test_a_replay_leaves_the_attributes_of_modules(tmp_path):
    def run(*, watched):
        torch.manual_seed(0)
        model = Counting()
        if watched:
            assert trained(model, tmp_path / "run")
        else:
            for step in range(1, 6):
                x = torch.randn(3, 4)
                x[1, 2] = float("nan") if step == 3 else x[1, 2]
                model(x)
        return model.calls, model.history, model.by_kind, model.running.tolist(), model.peak.item()

    assert run(watched=True) == run(watched=False)


def test_attributes_are_kept_and_new_ones_gone():
    model = Counting()
    kept = model.history
    with attributes_kept(model):
        model(torch.ones(1, 4))
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 5))
    assert (model.calls, model.history, model.by_kind) == (0, [], {"sums": []})
    assert model.history is kept
    assert not hasattr(model, "last_shape")


class Attention(nn.Linear):
    def forward(self, x):
        q = super().forward(x)
        if q.dtype == torch.float32:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        return torch.softmax(q @ q.transpose(0, 1), -1) @ q


def test_attention_that_refuses_float32(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(4, 4), nn.Linear(4, 2)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(4):
            model(torch.randn(3, 4).half() * (3000 if step == 2 else 1)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    incident = diagnose(tmp_path / "run").incidents[0]
    assert incident.origin.module == "0"
    assert incident.causes[0].cause == "fp16-activation-overflow", "not proved, and named all the same"


def test_the_accelerator_that_is_there_is_used(monkeypatch):
    from finitune.monitor.replay import surroundings

    states = {0: torch.arange(3), 1: torch.arange(4)}

    class Device:
        device_count = staticmethod(lambda: 2)
        get_rng_state = staticmethod(lambda n: states[n].clone())
        set_rng_state = staticmethod(lambda state, n: states.__setitem__(n, state))

    own = torch.get_device_module
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch, "get_device_module", lambda d: Device if d == "xpu" else own(d))
    with torch.autocast("xpu", torch.bfloat16):
        known, autocast = surroundings.Randomness.now(), surroundings.Autocast.now()
    assert autocast.dtype == torch.bfloat16
    states[1] = torch.zeros(1)
    known.restore()
    assert states[1].tolist() == [0, 1, 2, 3]
