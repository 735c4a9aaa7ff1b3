"""Only the modules that overflow compute in float32, and the checkpoint does not show it."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.gym.fault import faults
from finitune.gym.loop import train
from finitune.monitor.heal.float32_forward import compute_in_float32
from finitune.monitor.heal.remedies import float32_modules
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.watch import watch
from finitune.recording import Recording


@pytest.fixture(autouse=True)
def fast_float16():
    with float16_on_cpu():
        yield


class Squares(nn.Module):
    """Exceeds float16 inside where its input is large, and returns to small numbers."""

    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x):
        return F.layer_norm(torch.square(self.up(x) * 8), x.shape[-1:]).to(x.dtype)


class Net(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Squares(8) for _ in range(blocks))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loop(model, optimizer, steps, grow=None, dtype=torch.float16):
    """From step 4 on some blocks have outputs beyond 65504 inside, as trained outliers do."""
    losses = []
    for step in range(1, steps + 1):
        if step == 4:
            with torch.no_grad():
                for block in grow or ():
                    model.blocks[block].up.weight.mul_(80)
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 8, generator=generator)
        y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        with torch.autocast("cpu", dtype):
            out = model(x)
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def digest(model):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()


def healed(tmp_path, grow, steps=26):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run", mode="heal"):
        losses = loop(model, optimizer, steps, grow)
    return model, losses, Recording.load(tmp_path / "run")


@pytest.mark.parametrize("grow", [(1,), (1, 3)])
def test_the_fewest_modules_that_make_the_step_finite(grow, tmp_path, capsys):
    model, losses, recording = healed(tmp_path, grow)
    applied = recording.events("remedy")[0]
    assert (applied["remedy"], applied["state"], applied["step"]) == ("float32-modules", "applied", 4)
    assert applied["targets"] == [f"blocks.{number}" for number in grow]
    assert [event["state"] for event in recording.events("remedy")] == ["applied", "kept"]
    assert [math.isfinite(loss) for loss in losses] == [step != 4 for step in range(1, 27)]
    assert {t.dtype for t in model.state_dict().values()} == {torch.float32}
    assert sum("forward" in vars(m) for m in model.modules()) == len(grow)
    (incident,) = diagnose(tmp_path / "run").incidents
    assert incident.action == "healed"
    said = capsys.readouterr().err
    assert f"set float32_modules = [{', '.join(applied['targets'])}]" in said.split("healed 1 time")[1]


def test_the_run_equals_one_whose_modules_were_in_float32_from_then_on(tmp_path):
    """The step of the incident too, which is taken with it."""
    model, losses, _ = healed(tmp_path, (1,))
    other = Net()
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-3)
    calls = []

    def from_the_fourth_on(*_):
        calls.append(1)
        if len(calls) == 4:
            compute_in_float32(other.blocks[1])

    other.register_forward_pre_hook(from_the_fourth_on)
    expected = loop(other, optimizer, 26, (1,))
    assert losses[4:] == expected[4:]
    assert digest(model) == digest(other)


class Replayed:
    """Finite where one of these sets is in float32."""

    def __init__(self, *enough):
        self.enough = [set(names) for names in enough]

    def finite(self, names):
        return any(one <= set(names) for one in self.enough)


@pytest.mark.parametrize(
    ("enough", "fewest"), [(["b"], ["b"]), (["a", "c"], ["a", "c"]), (["c"], ["c"]), (["a", "b", "c"], ["a", "b", "c"])]
)
def test_no_module_is_kept_that_can_be_left_out(enough, fewest, monkeypatch):
    monkeypatch.setattr(float32_modules, "in_float32", lambda names: names)
    assert float32_modules._fewest(Replayed(enough), ["a", "b", "c"]) == fewest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_undo_leaves_no_trace(dtype):
    block = Squares(8).to(dtype)
    before, attributes = digest(block), sorted(vars(block))
    x = torch.randn(4, 8).to(dtype)
    plain = block(x)
    undo = [compute_in_float32(block), compute_in_float32(block.up)]
    assert block(x).dtype == dtype
    assert {p.dtype for p in block.parameters()} == {dtype}
    block(x).sum().backward()
    assert block.up.weight.grad.dtype == dtype
    for one in reversed(undo):
        one()
    assert sorted(vars(block)) == attributes
    assert digest(block) == before
    assert torch.equal(block(x), plain)


def test_weights_in_float16_are_computed_with_in_float32_and_are_there_again_when_it_raises():
    block = Squares(8).half()
    compute_in_float32(block)
    x = torch.full((2, 8), 300.0).half()
    assert block(x).isfinite().all()
    weight = block.up.weight
    block.up.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        block(x)
    assert block.up.weight is weight


def test_most_of_the_model_is_no_matter_of_single_modules(tmp_path, capsys):
    """The residual stream itself overflows, from its first block to the last norm."""
    run = faults()["fp16-activation-overflow"].build("gpt2", tmp_path)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal") as watched:
        for step in train(run):
            if step.step == 5:
                break
        assert not watched.closed
    assert "which is most of the model" in capsys.readouterr().err
    assert not any("forward" in vars(m) for m in run.model.modules())


def test_a_transformer_with_masters_goes_on(tmp_path):
    run = faults()["fp16-activation-overflow"].build("llama", tmp_path)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        losses = [step.loss for step in train(run)]
    assert [math.isfinite(loss) for loss in losses] == [step != 4 for step in range(1, 21)]
    events = Recording.load(tmp_path / "run").events("remedy")
    assert [event["state"] for event in events] == ["applied", "kept"]
    assert {p.dtype for p in run.model.parameters()} == {torch.float16}
