"""Compiled code that is bad is neither blamed on hardware nor left with a dispatcher that cannot work."""

from __future__ import annotations

import contextlib
import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.probes import optimizer_steps
from finitune.monitor.watch import watch
from finitune.recording import Recording


@pytest.fixture(autouse=True)
def own_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("once", [False, True], ids=["each time", "once"])
def test_a_kernel_of_the_compiler_is_no_fault_of_the_hardware(once, tmp_path):
    """Operator by operator the step is finite; as it was compiled it is bad again, unless it really was so once."""
    bad = [0]

    def backend(graph, _):
        def run(*args):
            out = graph.forward(*args)
            bad[0] -= 1
            return tuple(each * math.nan for each in out) if bad[0] >= 0 else out

        return run

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(compiled, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            bad[0] = 0 if step != 3 else 1 if once else 100
            F.cross_entropy(compiled(torch.randn(4, 4)), torch.tensor([0, 1, 0, 1])).backward()
            optimizer.step()
            optimizer.zero_grad()
    (incident,) = diagnose(tmp_path / "run").incidents
    assert incident.step == 3
    assert incident.reproducible is not once
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert ("compiled code makes it" in (origin["why_not"] or "")) is not once
    assert once or "hardware-fault-sdc" not in [one.cause for one in incident.causes]


def test_a_step_of_the_optimizer_that_is_compiled_leaves_the_dispatcher_whole(tmp_path):
    """From torch 2.13 on a compiled function puts the dispatcher back to what it was when it was called."""
    vars(optimizer_steps._now).clear()  # as in a process that has made no step yet, where Dynamo guards on that
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    update = torch.compile(lambda: optimizer.step(), backend="eager")
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            loss = F.cross_entropy(model(torch.randn(4, 4)), torch.tensor([0, 1, 0, 1]))
            (loss * math.nan if step == 3 else loss).backward()
            update()
            optimizer.zero_grad()
            assert torch.zeros(2).sum() == 0
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)


BAD = 4


def trained_by_compiled_steps(
    run_dir, factor, *, kind=torch.optim.AdamW, dtype=torch.float32, accumulated=(1, 0), **given
):
    """Weights; of the accumulated losses of step 4 one is multiplied by `factor`."""
    losses, bad = accumulated
    torch.manual_seed(0)
    model = nn.Linear(4, 2, dtype=dtype)
    optimizer = kind(model.parameters(), lr=1e-2)
    update = torch.compile(lambda: optimizer.step(), backend="eager")
    with contextlib.nullcontext() if run_dir is None else watch(model, optimizer, run_dir=run_dir):
        for step in range(1, 9):
            for number in range(losses):
                loss = model(torch.randn(4, 4, dtype=dtype)).square().mean()
                (loss * factor if (step, number) == (BAD, bad) else loss).backward()
            if step != BAD or run_dir is not None or factor == 1:
                update()
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [functools.partial(torch.optim.AdamW, eps=1e-4), torch.optim.SGD], ids=["adamw", "sgd"]
)
@pytest.mark.parametrize("accumulated", [(1, 0), (2, 0), (2, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1, math.nan, math.inf, -math.inf])
def test_a_bad_step_that_is_compiled_is_discarded(factor, dtype, accumulated, kind, tmp_path):
    given = {"kind": kind, "dtype": dtype, "accumulated": accumulated}
    expected = trained_by_compiled_steps(None, factor, **given)
    torch.compiler.reset()
    found = trained_by_compiled_steps(tmp_path / "run", factor, **given)
    recording = Recording.load(tmp_path / "run")
    assert [(e["step"], e["action"]) for e in recording.events("incident")] == [(BAD, "skipped-step")] * (factor != 1)
    assert recording.signals["loss"].steps.tolist() == list(range(1, 9))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_bad_step_by_hand_beside_an_optimizer_that_never_steps_is_one_step(compiled, tmp_path):
    torch.manual_seed(0)
    linear = nn.Linear(4, 2)
    model = torch.compile(linear, backend="eager") if compiled else linear
    optimizer = torch.optim.AdamW(linear.parameters())
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 9):
            model.zero_grad()
            loss = model(torch.randn(4, 4)).square().mean()
            (loss * math.inf if step in (BAD, BAD + 3) else loss).backward()
            with torch.no_grad():
                for p in linear.parameters():
                    p -= 0.01 * p.grad.nan_to_num(0, 0, 0)
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [BAD, BAD + 3]
    assert recording.signals["loss"].steps.tolist() == list(range(1, 9))


def mean_of_some(model, x, counts):
    loss = (model(x).square().mean(1) * counts).sum() / counts.sum()
    loss.backward()
    return loss.detach()


def test_a_line_within_a_step_that_is_compiled_as_a_whole(tmp_path):
    """Its backward is not seen; what it returns is a variable of the loop."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(mean_of_some, backend="aot_eager")
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for number in range(1, 6):
            optimizer.zero_grad()
            loss = step(model, torch.randn(3, 4), torch.full((3,), float(number != BAD)))
            optimizer.step()
    (event,) = Recording.load(tmp_path / "run").events("origin")
    assert (event["step"], event["origin"]["op"], event["origin"]["tensor"]) == (BAD, "aten.div", "loss")
    assert "in mean_of_some: loss = (model(x)" in event["origin"]["line"]
    assert math.isfinite(loss)
