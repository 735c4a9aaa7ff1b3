"""What reviews for GPUs and ranks found and no other file tests; `tests/test_trial_audit_guard.py` has all of it."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor import process
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes import module_state
from finitune.monitor.probes.module_state import attributes_kept
from finitune.monitor.process import Stopped
from finitune.monitor.replay.limits import Limits
from finitune.monitor.watch import watch
from finitune.recording import Recording


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


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["SIGINT", "background job"])
def _interrupts(request):
    """A shell without job control starts what it does not wait for with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_step_in_a_thread_of_its_own_ends_the_run_too(tmp_path):
    """Stopped ends the thread alone, so the main one is interrupted, and until then nothing is applied."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        for _ in range(20):
            (model(torch.ones(2, 4)).sum() * float("nan")).backward()
            thread = threading.Thread(target=optimizer.step)
            thread.start()
            thread.join()
            optimizer.zero_grad()

    with watch(model, optimizer, run_dir=tmp_path / "run") as watched, pytest.raises(KeyboardInterrupt):
        train()
    assert watched.step <= 4
    assert model.weight.isfinite().all()


class Threaded(nn.Linear):
    """Runs its forward in a thread, as nn.DataParallel does."""

    def forward(self, x):
        out = []
        thread = threading.Thread(target=lambda: out.append(super(Threaded, self).forward(x) * float("nan")))
        thread.start()
        thread.join()
        return out[0]


def test_operators_of_another_thread_are_not_said_to_be_seen(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), Threaded(4, 2))
    (incident, *_) = trained(model, tmp_path / "run", bad=None, steps=1)
    assert incident.origin is None, "not made elsewhere, as the loop's own code"
    assert "hardware-fault-sdc" not in [one.cause for one in incident.causes]


class Held(nn.Module):
    """A function of the loop decides how it computes, and is back to normal when the step is run again."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        out = self.inner(x)
        return out / (out * 0) if SWITCHED else out


SWITCHED = []


def test_a_context_that_the_replay_lacks_is_no_fault_of_the_hardware(tmp_path):
    """As `fp8_autocast` or `sdpa_kernel` around the forward alone."""
    model = Held()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            SWITCHED[:] = [True] if step == 3 else []
            loss = model(torch.randn(3, 4)).square().mean()
            SWITCHED.clear()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    (incident,) = diagnose(tmp_path / "run").incidents
    assert "replace-hardware" not in [remedy.name for one in incident.causes for remedy in one.remedies]


def test_gradients_of_weights_that_the_loop_moves_and_puts_back_are_no_fault_of_the_hardware(tmp_path):
    """Sharpness-aware minimisation by hand, where all margins are met: loss and first gradient are zero."""
    torch.manual_seed(0)
    model, hinge = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), nn.MultiMarginLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            x, y = torch.randn(6, 4), torch.randint(3, (6,))
            if step == 4:
                x *= 1e4
                y = model(x).argmax(1)
            hinge(model(x), y).backward()
            with torch.no_grad():
                kept = [p.clone() for p in model.parameters()]
                scale = 0.05 / torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                for p in model.parameters():
                    p.add_(p.grad * scale)
            optimizer.zero_grad()
            hinge(model(x), y).backward()
            with torch.no_grad():
                for p, was in zip(model.parameters(), kept, strict=True):
                    p.copy_(was)
            optimizer.step()
            optimizer.zero_grad()
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.reproducible, list(incident.causes)) == (4, None, [])
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert "of other weights" in origin["why_not"]


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


def test_large_buffers_are_not_copied(monkeypatch):
    """Weights of quantised models lie in buffers, and no forward writes them."""
    model = nn.Linear(4, 2)
    model.register_buffer("packed", torch.zeros(module_state.SMALL_BUFFER + 1, dtype=torch.uint8))
    model.register_buffer("mean", torch.zeros(4))
    own, copied = torch.Tensor.clone, []
    monkeypatch.setattr(torch.Tensor, "clone", lambda t, *a, **k: copied.append(t.shape) or own(t, *a, **k))
    with module_state.untouched(model):
        model.mean.add_(1)
    assert model.mean.eq(0).all()
    assert model.packed.shape not in copied


def test_masked_scores_are_not_kept():
    q, mask, alive = torch.randn(4, 16, 8), torch.ones(16, 16).triu(1).bool(), []
    with OperatorWatch({}, list, Limits()):
        for _ in range(8):
            scores = (q @ q.mT).masked_fill(mask, -float("inf"))
            alive.append(weakref.ref(scores))
            q = scores.softmax(-1) @ q
            del scores
        gc.collect()
        assert not [ref for ref in alive if ref() is not None]


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


class CountedByItsClass(nn.Linear):
    calls = 0
    shapes: ClassVar[list[torch.Size]] = []

    def forward(self, x):
        CountedByItsClass.calls += 1
        self.shapes.append(x.shape)
        return super().forward(x)


def test_attributes_of_classes_are_kept_too():
    model = nn.Sequential(CountedByItsClass(4, 4), CountedByItsClass(4, 4))
    with attributes_kept(model):
        model(torch.ones(1, 4))
        assert (CountedByItsClass.calls, len(CountedByItsClass.shapes)) == (2, 2)
    assert (CountedByItsClass.calls, CountedByItsClass.shapes) == (0, [])


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
    from finitune.monitor.probes import surroundings

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
