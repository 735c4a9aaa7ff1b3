"""One bad step: no weight, moment or counter takes any of it, whatever the value, dtype, optimizer or loop."""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip_imported_early
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from finitune import incidents
from finitune.monitor import MAX_CALLS, Stopped, watch
from finitune.probes import reading
from finitune.probes.optimizers import TorchUpdate
from finitune.recording import Recording
from finitune.replay.capture import Call

BAD = 3
VALUES = [math.nan, math.inf, -math.inf]


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


@dataclass
class Loop:
    """A training loop as a user writes it; step `bad` (and the `times` - 1 after it) goes wrong by `fault`."""

    make: Any = adamw
    dtype: torch.dtype = torch.float32
    clip: Any = None
    accumulate: int = 1
    closure: bool = False
    scaled: bool = False
    fault: str = "hook"
    value: float = math.nan
    bad: int = BAD
    times: int = 1
    losses: list = field(default_factory=list)

    def __post_init__(self):
        self.model = net(self.dtype)
        self.optimizer = self.make(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if self.scaled else None
        self.taken = 0
        victim = self.model[2].weight
        if self.fault == "hook":
            victim.register_hook(self._spoil)
        elif self.fault == "late hook":
            victim.register_post_accumulate_grad_hook(self._write_late)
        elif self.fault == "module hook":
            self.model[0].register_full_backward_hook(lambda m, gi, go: None)
            self.model[2].register_full_backward_hook(lambda m, gi, go: tuple(self._spoil(g) for g in gi))

    @property
    def faulty(self):
        return self.bad <= self.taken < self.bad + self.times

    def _spoil(self, gradient):
        return self._write(gradient.clone()) if self.faulty else gradient

    def _write(self, gradient):
        if self.faulty:
            gradient.view(-1)[3] = self.value
        return gradient

    def _write_late(self, parameter):
        self._write(parameter.grad)

    def step(self):
        self.taken += 1
        if self.closure:
            self.losses.append(float(self.optimizer.step(self._closure)))
            return
        loss = self._forward_backward()
        if self.fault == "by hand" and self.faulty:
            self._write(self.model[2].weight.grad)
        if self.scaler is None:
            self._clip()
            self.optimizer.step()
        else:
            self.scaler.unscale_(self.optimizer)
            self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        self.losses.append(loss)

    def _closure(self):
        self.optimizer.zero_grad()
        loss = self._forward_backward()
        self._clip()
        return loss

    def _clip(self):
        if self.clip is not None:
            self.clip(self.model.parameters(), 0.1)

    def _forward_backward(self):
        total = 0.0
        for micro in range(self.accumulate):
            x, y = batch(self.taken, micro)
            autocast = torch.autocast("cpu", torch.float16) if self.scaled else contextlib.nullcontext()
            with autocast:
                loss = self._loss(self.model(x.to(self.dtype)), y)
            loss = loss / self.accumulate
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            total += float(loss.detach())
        return total

    def _loss(self, out, y):
        if self.fault == "labels ignored":
            labels = torch.full_like(y, -100) if self.faulty else y
            return F.cross_entropy(out.float(), labels, ignore_index=-100)
        loss = F.cross_entropy(out.float(), y)
        if self.fault == "detached loss" and self.faulty:
            loss = loss + torch.tensor(self.value)
        if self.fault == "loss" and self.faulty:
            loss = loss * torch.tensor(self.value)
        return loss


def batch(step, micro=0):
    generator = torch.Generator().manual_seed(17 * step + micro)
    return torch.randn(8, 6, generator=generator), torch.randint(4, (8,), generator=generator)


def state(loop):
    """Weights and the complete optimizer state, copied."""
    return copy.deepcopy({"weights": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()})


def same(a, b) -> bool:
    """Bit for bit, NaN included."""
    if isinstance(a, torch.Tensor):
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and torch.equal(a.contiguous().view(-1).view(integer), b.contiguous().view(-1).view(integer))
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a is b or (a != a and b != b))


def finite(loop):
    return all(p.isfinite().all() for p in loop.model.parameters())


SETUPS = {
    "float32": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16, "make": sgd},
    "foreach": {"make": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True)},
    "fused": {"make": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True)},
    "adafactor": {"make": lambda p: torch.optim.Adafactor(p, lr=1e-2)},
    "scaler": {"scaled": True},
    "scaler and clip": {"scaled": True, "clip": torch.nn.utils.clip_grad_norm_},
    "accumulate": {"accumulate": 3},
    "clip": {"clip": lambda *args: torch.nn.utils.clip_grad_norm_(*args)},
    "clip imported early": {"clip": clip_imported_early},
    "bfloat16 clip accumulate": {"dtype": torch.bfloat16, "clip": clip_imported_early, "accumulate": 2},
    "closure": {"closure": True},
    "closure and clip": {"closure": True, "clip": clip_imported_early},
    "closure sgd": {"closure": True, "make": sgd},
    "closure lbfgs": {"closure": True, "make": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)},
    "closure lbfgs search": {
        "closure": True,
        "make": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),
    },
}


def discards_one_step(loop, run_dir):
    """Everything this file asks of a bad step."""
    with watch(loop.model, loop.optimizer, run_dir=run_dir) as watched:
        for _ in range(loop.bad - 1):
            loop.step()
        before = state(loop)
        loop.step()
        after = state(loop)
        assert same(before, after)
        for _ in range(2):
            loop.step()
        assert watched.step == loop.taken
    assert finite(loop)
    assert not same(after["weights"], state(loop)["weights"])
    recording = Recording.load(run_dir)
    assert [event["step"] for event in recording.events("incident")] == [loop.bad]
    assert not recording.events("broken")
    skipped = recording.signals["skipped"]
    assert skipped.values.tolist() == [float(step == loop.bad) for step in skipped.steps.tolist()]
    assert recording.signals["grad_norm"].steps.tolist() == list(range(1, loop.taken + 1))
    return recording


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("setup", SETUPS)
def test_one_bad_gradient_element_changes_nothing(setup, value, tmp_path):
    loop = Loop(**SETUPS[setup], value=value)
    recording = discards_one_step(loop, tmp_path / "run")
    (incident,) = recording.events("incident")
    assert incident["symptom"] == "nonfinite-gradient"
    assert incident["bad"] == ["2.weight"]


def test_a_nan_that_goes_through_clipping_by_value(tmp_path):
    """An infinity would come out of it finite, and the step with it."""
    discards_one_step(Loop(clip=torch.nn.utils.clip_grad_value_), tmp_path / "run")


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("fault", ["late hook", "by hand", "module hook", "detached loss", "loss"])
@pytest.mark.parametrize("setup", ["float32", "bfloat16", "clip", "fused"])
def test_wherever_the_bad_value_comes_in(setup, fault, value, tmp_path):
    recording = discards_one_step(Loop(**SETUPS[setup], fault=fault, value=value), tmp_path / "run")
    (incident,) = recording.events("incident")
    assert incident["symptom"] == ("nonfinite-loss" if "loss" in fault else "nonfinite-gradient")


@pytest.mark.parametrize("setup", ["float32", "bfloat16", "clip", "accumulate", "closure", "scaler"])
def test_labels_all_ignored(setup, tmp_path):
    recording = discards_one_step(Loop(**SETUPS[setup], fault="labels ignored"), tmp_path / "run")
    assert math.isnan(recording.signals["loss"].values[BAD - 1])


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("setup", ["float32", "fused", "scaler", "closure", "closure lbfgs", "adafactor"])
def test_a_fault_at_the_first_step_leaves_no_state_behind(setup, value, tmp_path):
    loop = Loop(**SETUPS[setup], value=value, bad=1)
    discards_one_step(loop, tmp_path / "run")


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("setup", ["float32", "scaler", "clip"])
def test_afterwards_all_is_as_if_the_bad_step_had_not_been_taken(setup, value, tmp_path):
    """The batches of a run without the bad step, so one update less, and the same bits."""
    watched, plain = Loop(**SETUPS[setup], value=value), Loop(**SETUPS[setup], bad=-1)
    with watch(watched.model, watched.optimizer, run_dir=tmp_path / "run"):
        for _ in range(6):
            watched.step()
    for _ in range(6):
        plain.step() if plain.taken + 1 != BAD else setattr(plain, "taken", BAD)
    if setup == "scaler":  # its scale has halved, which moves the last bits
        pairs = zip(watched.model.parameters(), plain.model.parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-2, atol=1e-4) for a, b in pairs)
    else:
        assert same(state(watched), state(plain))


def test_only_the_gradient_of_the_bad_step_is_withheld(tmp_path):
    """A loop that looks at gradients after the step finds them where they were."""
    loop = Loop(bad=1)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.taken = 1
        loop._forward_backward()
        gradients = [p.grad for p in loop.model.parameters()]
        kept = [g.clone() for g in gradients]
        loop.optimizer.step()
        assert all(p.grad is g and same(g, k) for p, g, k in zip(loop.model.parameters(), gradients, kept, strict=True))


def test_nonfinite_gradients_of_a_group_that_is_not_trained_are_none_of_its_business(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    model[2].weight.register_hook(lambda g: g * math.nan)
    before = model[0].weight.clone()
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        x, y = batch(1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert not torch.equal(before, model[0].weight)
    assert not Recording.load(tmp_path / "run").events("incident")


# The learning rate


SCHEDULES = {
    "LambdaLR": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "StepLR": lambda o: StepLR(o, step_size=2),
    "CosineAnnealingLR": lambda o: CosineAnnealingLR(o, T_max=10),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=0.1, total_steps=20, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: CosineAnnealingWarmRestarts(o, T_0=5),
    "SequentialLR": lambda o: SequentialLR(o, [LinearLR(o, total_iters=3), CosineAnnealingLR(o, T_max=9)], [4]),
    "ChainedScheduler": lambda o: ChainedScheduler([LinearLR(o, total_iters=3), StepLR(o, step_size=2)]),
}


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_per_step_schedule_does_not_advance_on_a_discarded_step(schedule, made, tmp_path):
    rates = {}
    for bad in (BAD, -1):
        loop = Loop(bad=bad)
        scheduler = SCHEDULES[schedule](loop.optimizer) if made == "before" else None
        with watch(loop.model, loop.optimizer, run_dir=tmp_path / f"run{bad}"):
            scheduler = scheduler or SCHEDULES[schedule](loop.optimizer)
            rates[bad] = []
            for _ in range(7):
                loop.step()
                scheduler.step()
                rates[bad].append(loop.optimizer.param_groups[0]["lr"])
    expected = [*rates[-1][: BAD - 1], rates[-1][BAD - 2], *rates[-1][BAD - 1 : -1]]
    assert rates[BAD] == pytest.approx(expected)


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("schedule", ["LambdaLR", "StepLR", "CosineAnnealingWarmRestarts", "ChainedScheduler"])
@pytest.mark.parametrize("per_epoch", [2, 4])
def test_a_per_epoch_schedule_advances_whatever_happened_to_the_last_step(schedule, made, per_epoch, tmp_path):
    rates = {}
    for bad in (per_epoch, -1):
        loop = Loop(bad=bad)
        scheduler = SCHEDULES[schedule](loop.optimizer) if made == "before" else None
        with watch(loop.model, loop.optimizer, run_dir=tmp_path / f"run{bad}"):
            scheduler = scheduler or SCHEDULES[schedule](loop.optimizer)
            rates[bad] = []
            for _ in range(3):
                for _ in range(per_epoch):
                    loop.step()
                scheduler.step()
                rates[bad].append(loop.optimizer.param_groups[0]["lr"])
    assert rates[per_epoch] == rates[-1]


def test_what_is_kept_of_a_line_search_is_one_evaluation_of_its_closure(tmp_path):
    """Run again as a yardstick, the batch must give the one loss that was read, not the sum over the search."""
    loop = Loop(**SETUPS["closure lbfgs"], bad=-1)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run") as watched:
        for _ in range(4):
            loop.step()
        kept = watched._incidents._yardstick._kept
        assert kept
        assert all(len(capture.micro_steps) == 1 for _, capture, _ in kept)


# Modes, and what is said


def test_observe_applies_the_update_and_says_so(tmp_path, capsys):
    loops = [Loop(times=2), Loop(times=2)]
    with watch(loops[0].model, loops[0].optimizer, run_dir=tmp_path / "run", mode="observe"):
        for _ in range(5):
            loops[0].step()
    for _ in range(5):
        loops[1].step()
    assert same(state(loops[0]), state(loops[1]))
    assert not finite(loops[0])
    said = capsys.readouterr().err
    assert f"step {BAD}: gradients are not finite" in said
    assert "Only observed" in said
    recording = Recording.load(tmp_path / "run")
    assert [event["action"] for event in recording.events("incident")] == ["none"]
    assert recording.signals["skipped"].values.sum() == 0
    assert not recording.events("stop")


def test_guard_says_what_it_did_once_per_step(tmp_path, capsys):
    loop = Loop(times=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(BAD - 1):
            loop.step()
        assert capsys.readouterr() == ("", "")
        for _ in range(3):
            loop.step()
    out, err = capsys.readouterr()
    assert out == ""
    begins = [line for line in err.splitlines() if line.startswith("finitune: ")]
    assert len(begins) == 2
    assert begins[0].startswith(f"finitune: step {BAD}: gradients are not finite (1 of 4 tensors)")
    assert begins[1].startswith(f"finitune: step {BAD + 1}: gradients are not finite (1 of 4 tensors)")
    assert f"weights are those of step {BAD - 1}" in err
    assert f"weights are those of step {BAD}." not in err


def test_an_unknown_mode_is_refused_before_anything_is_touched():
    model = net()
    with pytest.raises(ValueError, match="observe, guard"):
        watch(model, adamw(model.parameters()), mode="heal!")
    assert not model._forward_hooks


def test_watching_twice_is_watching_once_and_closing_restores_everything(tmp_path):
    backward, step = torch.autograd.backward, torch.optim.lr_scheduler.LRScheduler.step
    loop = Loop(bad=-1)
    before = set(vars(loop.optimizer))
    first = watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")
    assert watch(loop.model, loop.optimizer, run_dir=tmp_path / "other") is first
    first.close()
    first.close()
    assert torch.autograd.backward is backward
    assert torch.optim.lr_scheduler.LRScheduler.step is step
    assert not loop.model._forward_hooks
    assert not loop.model._forward_pre_hooks
    assert not loop.optimizer._optimizer_step_pre_hooks
    assert set(vars(loop.optimizer)) == before


# When something of ours breaks, and when something of theirs does


def raises(*_args, **_kwargs):
    raise ZeroDivisionError("planted in finitune")


BROKEN = {
    "incidents": (incidents.Incidents, "bad"),
    "over": (incidents.Incidents, "over"),
    "norms": (reading, "norms"),
    "calls": (Call, "of"),
    "gradients": (TorchUpdate, "gradients"),
}


@pytest.mark.parametrize("clip", [None, clip_imported_early], ids=["plain", "clip"])
@pytest.mark.parametrize("closure", [False, True], ids=["loop", "closure"])
@pytest.mark.parametrize("part", BROKEN)
def test_a_fault_of_finitune_leaves_the_run_alone_and_is_said_once(part, closure, clip, tmp_path, monkeypatch, capsys):
    loops = [Loop(clip=clip, closure=closure), Loop(clip=clip, closure=closure)]
    for _ in range(5):
        loops[1].step()
    watched = watch(loops[0].model, loops[0].optimizer, run_dir=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(*BROKEN[part], raises)
        for _ in range(5):
            loops[0].step()
    watched.close()
    err = capsys.readouterr().err
    assert err.count("finitune itself failed") == 1
    assert "ZeroDivisionError: planted in finitune" in err
    assert "Traceback" not in err
    if part in ("calls", "over", "incidents"):  # these can be lost without losing the gate
        assert all(bool(torch.isfinite(p).all()) for p in loops[0].model.parameters())
    else:
        assert same(state(loops[0]), state(loops[1]))
        assert same(loops[0].losses, loops[1].losses)
    assert len(Recording.load(tmp_path / "run").events("broken")) == 1


def test_a_users_exception_comes_through_and_the_monitor_lives_on(tmp_path):
    loop = Loop()
    own = KeyError("the user's own")

    def sometimes(*_):
        if loop.taken == 2 and not fired:
            fired.append(1)
            raise own

    fired = []
    loop.model[0].register_forward_hook(sometimes)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
        with pytest.raises(KeyError) as caught:
            loop.step()
        assert caught.value is own
        assert not any("finitune" in str(entry.path) for entry in caught.traceback)
        before = state(loop)
        loop.step()
        assert same(before, state(loop))
        loop.step()
        assert not same(before["weights"], state(loop)["weights"])
    recording = Recording.load(tmp_path / "run")
    (origin,) = recording.events("origin")
    assert origin["repeats"]
    assert not recording.events("broken")


def test_a_users_exception_inside_a_closure_comes_through(tmp_path):
    loop = Loop()

    def closure():
        raise KeyError("the user's own")

    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
        with pytest.raises(KeyError):
            loop.optimizer.step(closure)
        loop.optimizer.zero_grad()
        loop.step()
    assert not Recording.load(tmp_path / "run").events("incident")


def test_forwards_without_backward_are_not_hoarded(tmp_path):
    loop = Loop(bad=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run") as watched:
        loop.step()
        for i in range(5 * MAX_CALLS):
            loop.model(batch(i)[0])
        assert len(watched._micro.calls) == MAX_CALLS
        with torch.no_grad():
            loop.model(batch(0)[0])
        loop.step()
        assert not watched._micro.calls
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert origin["repeats"]
    assert origin["why_not"] is None


def test_gradients_dropped_by_the_loop_itself_are_a_skipped_step(tmp_path):
    """A loop that looks at the norm and calls zero_grad instead of step."""
    loop = Loop()
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(5):
            loop.taken += 1
            loop._forward_backward()
            norm = clip_imported_early(loop.model.parameters(), 1.0)
            if norm.isfinite():
                loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert finite(loop)
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["skipped"].values.tolist() == [0, 0, 1, 0, 0]
    assert [event["step"] for event in recording.events("incident")] == [BAD]


# The end


@pytest.mark.parametrize("setup", ["float32", "closure", "accumulate", "clip", "fused"])
def test_a_persistent_fault_ends_the_run_with_the_last_good_weights(setup, tmp_path, capsys):
    loop = Loop(**SETUPS[setup], times=99)
    watched = watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")
    for _ in range(BAD - 1):
        loop.step()
    good = state(loop)
    loop.step()
    loop.step()
    with pytest.raises(Stopped, match="persists") as stopped:
        loop.step()
    assert isinstance(stopped.value, SystemExit)
    assert stopped.value.code == 3
    assert loop.taken == BAD + 2
    assert same(good, state(loop))
    saved = load_file(tmp_path / "run" / "last-good" / "model.safetensors")
    assert same(saved, dict(good["weights"]))
    moments = load_file(tmp_path / "run" / "last-good" / "optimizer.safetensors")
    assert same(moments["2.weight.exp_avg"], good["optimizer"]["state"][2]["exp_avg"])
    recording = Recording.load(tmp_path / "run")
    (stop,) = recording.events("stop")
    assert stop["step"] == BAD + 2
    assert stop["incident"] == recording.events("incident")[0]["id"]
    assert [e["step"] for e in recording.events("action")] == [BAD + 1, BAD + 2]
    assert "Run ended; weights of the last good step are in" in capsys.readouterr().err
    assert not watched._handles


def test_a_fault_in_every_other_step_ends_the_run_too(tmp_path):
    loop = Loop(bad=-1)
    watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")

    def train():
        for number in range(60):
            loop.bad = loop.taken + 1 if number % 2 else -1
            loop.step()

    with pytest.raises(Stopped, match="of the last"):
        train()
    assert loop.taken <= 25


def test_two_bad_steps_and_a_sound_one_do_not_end_it(tmp_path):
    loop = Loop(times=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(30):
            loop.step()
    assert not Recording.load(tmp_path / "run").events("stop")


# Float16


def test_a_scaler_that_settles_is_no_incident(tmp_path, capsys):
    loop = Loop(scaled=True, bad=-1)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        for _ in range(14):
            loop.step()
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["skipped"].values[0] == 1
    assert recording.signals["skipped"].last == 0
    assert not recording.events("incident", "broken")
    assert capsys.readouterr().err == ""


def test_a_nan_that_no_loss_scale_cures_is_an_incident_at_once_under_a_scaler(tmp_path):
    loop = Loop(scaled=True, bad=1)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run"):
        loop.step()
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [1]


def test_a_bad_gradient_that_does_not_repeat_at_its_own_scale_is_no_settling_scale(tmp_path):
    """The scaler skips every step of it, and would go on doing so."""
    loop = Loop(scaled=True, fault="late hook", times=100)
    watch(loop.model, loop.optimizer, run_dir=tmp_path / "run")
    for _ in range(BAD + 1):
        loop.step()
    with pytest.raises(Stopped):
        loop.step()
    recording = Recording.load(tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["settles"]) == (BAD, False)
    (origin,) = recording.events("origin")
    assert origin["repeats"] is None
    assert "hooks on accumulated gradients" in origin["why_not"]


def test_a_bit_that_flips_once_under_a_scaler_does_not_repeat(tmp_path):
    recording = discards_one_step(Loop(scaled=True, fault="by hand"), tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["settles"]) == (BAD, False)
    assert [event["repeats"] for event in recording.events("origin")] == [False]


def test_a_loss_that_is_nan_under_a_scaler_with_finite_gradients_is_discarded(tmp_path):
    """GradScaler looks at gradients only and would apply the step."""
    discards_one_step(Loop(scaled=True, fault="detached loss"), tmp_path / "run")
