"""Finite gradients from which the optimizer makes weights that are not finite: the update's own step is named."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from finitune.monitor.probes import optimizers
from finitune.monitor.watch import watch
from finitune.recording import Recording


class Normalised(torch.optim.Optimizer):
    """Every gradient over the root of its mean square, without eps: 0/0 where a row was never used."""

    def __init__(self, parameters, lr=1e-2, eps=0.0):
        super().__init__(parameters, {"lr": lr, "divisor": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                square = self.state[p].setdefault("square", torch.zeros_like(p))
                square.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
                p.sub_(group["lr"] * p.grad / (square.sqrt() + group["divisor"]))


def train(run_dir, optimizer_of, steps=5, unused_from=3, **kwargs):
    torch.manual_seed(0)
    table, head = nn.Embedding(8, 4), nn.Linear(4, 2)
    model = nn.Sequential(table, head)
    optimizer = optimizer_of(model.parameters())
    with watch(model, optimizer, run_dir=run_dir, **kwargs):
        for step in range(1, steps + 1):
            ids = torch.arange(8) if step < unused_from else torch.arange(7)
            loss = nn.functional.cross_entropy(model(ids), ids % 2)
            optimizer.zero_grad()
            loss.backward()
            if step >= unused_from:
                head.bias.grad.zero_()
                for entries in optimizer.state.values():  # a row that has been forgotten
                    for value in entries.values():
                        value.zero_()
            optimizer.step()
    return Recording.load(run_dir)


@pytest.mark.parametrize("optimizer_of", [Normalised, lambda p: torch.optim.Adam(p, lr=1e-2, eps=0.0)])
def test_the_step_of_the_update_is_named(tmp_path, optimizer_of):
    recording = train(tmp_path / "run", optimizer_of, mode="observe")
    assert not recording.events("broken")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"], incident["last_good"]) == (3, "nonfinite-update", 2)
    assert incident["action"] == "none"
    (origin,) = (event["origin"] for event in recording.events("origin"))
    assert (origin["phase"], origin["op"].rpartition(".")[2]) == ("optimizer", "step")
    assert origin["rows"] == [7]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_that_of_an_adam_without_eps_is_foreseen_and_not_made(tmp_path, kind):
    recording = train(tmp_path / "run", lambda p: kind(p, lr=1e-2, eps=0.0), steps=4)
    first, *_ = recording.events("incident")
    assert (first["step"], first["symptom"], first["action"]) == (3, "nonfinite-update", "skipped-step")
    assert all(event["symptom"] == "nonfinite-update" for event in recording.events("incident"))
    assert math.isfinite(recording.signals["loss"].last)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_that_of_an_adam_whose_second_beta_has_become_1_is_foreseen_as_well(tmp_path, kind):
    """Its bias correction is 0, and so is what it divides by; the loss of a row that is not used shows nothing."""
    torch.manual_seed(0)
    model = nn.Embedding(4, 2)
    optimizer = kind(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=tmp_path):
        for step in (1, 2, 3):
            optimizer.param_groups[0]["betas"] = (0.9, 1.0 if step == 3 else 0.99)
            optimizer.zero_grad()
            model(torch.tensor([0, 1])).square().mean().backward()
            optimizer.step()
    (incident,) = Recording.load(tmp_path).events("incident")
    assert (incident["step"], incident["symptom"], incident["action"]) == (3, "nonfinite-update", "skipped-step")
    assert model.weight.isfinite().all()


def test_in_guard_the_update_is_undone_and_its_operator_named(tmp_path):
    recording = train(tmp_path / "run", Normalised, steps=4)
    assert not recording.events("broken")
    first, *_ = recording.events("incident")
    assert (first["step"], first["symptom"], first["last_good"], first["action"]) == (
        3, "nonfinite-update", 2, "skipped-step"
    )  # fmt: skip
    (origin,) = (event["origin"] for event in recording.events("origin"))
    assert (origin["phase"], origin["op"], origin["tensor"]) == ("optimizer", "aten.div", "0.weight")
    assert "p.sub_(group" in origin["line"]
    assert recording.signals["skipped"].values.tolist() == [0, 0, 1, 1]
    assert math.isfinite(recording.signals["loss"].last)


@pytest.mark.parametrize("sparse", [True, False])
def test_an_update_of_torch_that_may_divide_by_zero_is_undone(tmp_path, sparse):
    torch.manual_seed(0)
    table = nn.Embedding(6, 2, sparse=sparse)
    nn.init.ones_(table.weight)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1, eps=0)
    with watch(table, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            factors = torch.tensor([1.0, 1.0, 1.0, 0.0]) if step == 3 else torch.ones(4)
            ids = torch.tensor([0, 1, 2, 5 if step == 3 else 3])
            loss = (table(ids).sum(1) * factors).sum() if sparse else (table(torch.arange(6)).sum(1)).sum()
            optimizer.zero_grad()
            loss.backward()
            if not sparse and step == 3:
                optimizer.state[table.weight]["sum"].zero_()
                table.weight.grad.zero_()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"], incident["action"]) == (3, "nonfinite-update", "skipped-step")
    assert table.weight.isfinite().all()
    origin = recording.events("origin")[0]["origin"]
    assert "optimizer.step()" in origin["line"]


class Given(Normalised):
    """Its step takes what it divides by."""

    @torch.no_grad()
    def step(self, scale=None):
        for group in self.param_groups:
            for p in group["params"]:
                ratio = p.grad / torch.full_like(p, scale)
                p.sub_(group["lr"] * ratio.nan_to_num(posinf=math.inf, neginf=-math.inf))


def test_a_step_that_is_given_arguments_is_taken_again_with_them(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = Given(model.parameters())
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step(scale=0.0 if step == 3 else 1.0)
    (origin,) = (event["origin"] for event in Recording.load(tmp_path / "run").events("origin"))
    assert (origin["phase"], origin["op"]) == ("optimizer", "aten.div")
    assert "ratio = p.grad / torch.full_like(p, scale)" in origin["line"]


class Counting(torch.optim.SGD):
    """Keeps a number in its groups and one in its state; divides by zero in the fourth step."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["taken"] = group.get("taken", 0) + 1
            for p in group["params"]:
                entries = self.state[p]
                entries["count"] = entries.get("count", 0) + 1
                mean = entries.setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 0.5)
                p.sub_(mean * group["lr"] / (0.0 if entries["count"] == 4 else 1.0))


def counted(steps, directory, **kwargs):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = Counting(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=directory, **kwargs):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
    state = [optimizer.state[p] for p in model.parameters()]
    return [*model.parameters()], state, optimizer.param_groups[0]["taken"], Recording.load(directory)


def test_weights_state_and_groups_are_what_they_were(tmp_path):
    before = counted(3, tmp_path / "three")
    after = counted(4, tmp_path / "four")
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    for a, b in zip(before[1], after[1], strict=True):
        assert (a["count"], a["mean"].tolist()) == (b["count"], b["mean"].tolist())
    assert before[2] == after[2] == 3
    assert not before[3].events("incident", "broken")
    (incident,) = after[3].events("incident")
    assert (incident["step"], incident["bad"]) == (4, ["weight", "bias"])


@pytest.mark.parametrize("mode", ["guard", "heal"])
def test_what_is_large_is_not_copied(mode, tmp_path, monkeypatch):
    monkeypatch.setattr(optimizers, "MOST_KEPT", 8)
    _, _, taken, recording = counted(4, tmp_path, mode=mode)
    assert taken == 4
    assert recording.signals["skipped"].values.tolist() == [0, 0, 0, 0]


def test_its_step_is_named_also_where_the_weights_were_not_looked_at_after_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(optimizers, "MOST_KEPT", 8)
    with pytest.raises(SystemExit):
        train(tmp_path / "run", Normalised, steps=40, unused_from=30)
    first, *others = Recording.load(tmp_path / "run").events("incident")
    assert (first["step"], first["symptom"]) == (30, "nonfinite-update")
    assert not others
    said = capsys.readouterr().err
    assert "step 31: loss is nan. Update discarded; weights are those of step 30." in said


def test_a_divisor_that_is_held_away_from_zero_is_quiet(tmp_path):
    recording = train(tmp_path / "run", lambda p: Normalised(p, eps=1e-8))
    assert not recording.events("incident")
    assert not recording.events("broken")


def test_the_run_ends_without_calling_lost_weights_good(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(optimizers, "MOST_KEPT", 8)
    with pytest.raises(SystemExit):
        train(tmp_path / "run", Normalised, steps=9)
    said = capsys.readouterr().err
    assert "step 3: 2 trained tensors are not finite after the update" in said
    assert "step 4: loss is nan. Update discarded; weights are those of step 3." in said
    assert "no checkpoint was written, because the model holds non-finite weights" in said


def test_weights_that_were_bad_before_training_are_no_fault_of_the_optimizer(tmp_path):
    table, head = nn.Embedding(8, 4), nn.Linear(4, 2)
    with torch.no_grad():
        table.weight[7].div_(0.0)  # a row that no batch uses
    model = nn.Sequential(table, head)
    optimizer = Normalised(model.parameters(), eps=1e-8)
    with watch(model, optimizer, run_dir=tmp_path / "run", mode="observe"):
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(torch.arange(7)), torch.arange(7) % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    (incident,) = (event for event in recording.events("incident") if event["level"] == "incident")
    assert "after the update" not in incident["text"]
    (origin,) = (event["origin"] for event in recording.events("origin") if event["origin"])
    assert (origin["phase"], origin["tensor"], origin["rows"]) == ("parameter", "0.weight", [7])


class Bounded(torch.optim.Optimizer):
    """Steps within a bound of its own, infinite until a gradient changes its sign."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                bound = self.state[p].setdefault("bound", torch.full_like(p, math.inf))
                p.sub_(torch.minimum(group["lr"] * p.grad, bound))


def test_state_that_is_infinite_on_purpose_is_no_damage(tmp_path):
    recording = train(tmp_path / "run", Bounded, unused_from=99)
    assert not recording.events("incident")
    assert len(recording.signals["loss"]) == 5


class Secant(torch.optim.Optimizer):
    """One number for the curvature, from the last two steps; a gradient that has not changed divides by zero."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            (p,) = self.param_groups[0]["params"]
            state, gradient = self.state[p], p.grad.clone()
            curvature = torch.ones(())
            if state:
                moved, changed = p - state["p"], gradient - state["gradient"]
                curvature = 1.0 / torch.dot(moved, changed).abs().sqrt()
            state.update(p=p.clone(), gradient=gradient)
            p.sub_(0.01 * gradient / (1.0 + 1.0 / curvature))
            p.mul_(curvature / curvature)
        return loss


@pytest.mark.parametrize("named", [False, True])
def test_an_update_with_a_closure_is_taken_once_more(tmp_path, named):
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    model.weight = nn.Parameter(torch.rand(4))
    x, optimizer = torch.rand(8, 4), Secant(model.parameters())
    called = []
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):

            def closure(step=step):
                called.append(step)
                optimizer.zero_grad()
                out = x @ model.weight
                loss = (out - 1).square().mean() if step < 4 else out.mean()  # a slope that stays
                loss.backward()
                return loss

            optimizer.step(closure=closure) if named else optimizer.step(closure)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    assert called == [1, 2, 3, 4, 5]
    incident = recording.events("incident")[0]
    assert (incident["step"], incident["symptom"], incident["action"]) == (5, "nonfinite-update", "skipped-step")
    origin = recording.events("origin")[0]["origin"]
    assert (origin["phase"], origin["op"]) == ("optimizer", "aten.reciprocal")
    assert "curvature = 1.0 / torch.dot(moved, changed)" in origin["line"]
    assert model.weight.isfinite().all()


class Centred(torch.optim.Optimizer):
    """Gradients are divided in place by their mean magnitude, then handed to the optimizer that it wraps."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=1e-2, momentum=0.9)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(p.grad.abs().mean())
        self.base.step()


def test_an_operator_that_writes_to_the_gradients_is_named(tmp_path):
    torch.manual_seed(0)
    model, unused = nn.Linear(4, 1), 3
    optimizer, momenta = Centred(model.parameters()), []
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            optimizer.zero_grad()
            out = model(torch.rand(8, 4))
            ((out - 1).square().mean() if step != unused else out.sub(out.detach()).square().mean()).backward()
            optimizer.step()
            momenta.append([entry["momentum_buffer"].clone() for entry in optimizer.base.state.values()])
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("incident")] == [unused]
    (origin,) = (event["origin"] for event in recording.events("origin"))
    assert (origin["op"], origin["phase"]) == ("aten.div", "optimizer")
    assert "p.grad.div_(p.grad.abs().mean())" in origin["line"]
    assert all(map(torch.equal, momenta[unused - 1], momenta[unused - 2])), "also of the optimizer that it wraps"
