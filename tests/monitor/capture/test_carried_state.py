"""A step whose model carries a state from call to call is run again with the state as it was before the call."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from finitune.monitor.capture.carried_state import MOST, SMALL, CarriedStates  # noqa: E402
from finitune.monitor.watch import watch  # noqa: E402
from finitune.recording import Recording  # noqa: E402


class Running(nn.Module):
    """A state that grows from call to call: a buffer, one that is written in place, an attribute, or a number."""

    def __init__(self, kind, growth):
        super().__init__()
        self.growth, self.kind = growth, kind
        if kind in ("buffer", "in place"):
            self.register_buffer("state", torch.ones(3))
        else:
            self.state = torch.ones(3) if kind == "attribute" else 1.0
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        if self.kind == "in place":
            self.state.mul_(self.growth)
        else:
            self.state = self.state * self.growth
        seen = x * self.state
        return self.head(seen / seen.abs().max())


def trained(directory, kind, growth, batches, mode="guard"):
    """The model after a step on each batch, and the recording."""
    torch.manual_seed(0)
    model = Running(kind, growth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=directory, mode=mode):
        for x in batches:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return model, Recording.load(directory)


@pytest.mark.parametrize("kind", ["buffer", "attribute", "in place"])
def test_the_operator_that_spoils_a_state_is_named(tmp_path, kind):
    _, recording = trained(tmp_path, kind, 1e6, torch.rand(9, 4, 3) + 0.5, mode="observe")
    event = recording.events("origin")[0]
    origin = event["origin"]
    assert (origin["op"], origin["phase"]) == ("aten.mul", "forward")
    assert "self.state" in origin["line"]
    assert event["repeats"]


@pytest.mark.parametrize("kind", ["buffer", "attribute", "in place", "number"])
def test_a_state_is_as_it_would_be_unwatched(tmp_path, kind):
    """A step is run again in the middle, after which the state goes on from where it was."""
    batches = [torch.full((4, 3), float("nan") if step == 6 else 1.0) for step in range(1, 9)]
    model, recording = trained(tmp_path, kind, 2.0, batches)
    assert len(recording.events("incident")) == 1
    assert (torch.as_tensor(model.state) == 256.0).all()


def test_nothing_is_kept_of_a_module_that_carries_nothing():
    model, states = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), CarriedStates()
    for _ in range(9):
        model(torch.rand(4, 2))
        assert states.before(model) == ()


def test_what_is_kept_is_small_and_as_it_was_before_the_call():
    model, states = Running("number", 2.0), CarriedStates()
    model.large = torch.zeros(SMALL + 1)
    for _ in range(4):
        kept = states.before(model)
        model(torch.rand(4, 3))
        model.large += 1
    assert [(one.name, one.value) for one in kept] == [("state", 8.0)]
    kept[0].put_back()
    assert model.state == 8.0


def test_no_more_is_kept_than_a_few():
    model, states = nn.ParameterDict(), CarriedStates()
    many = Running("number", 1.0)
    for call in range(4):
        for n in range(2 * MOST):
            setattr(many, f"state_{n}", call)
        kept = states.before(many)
    assert len(kept) == MOST
    assert states.before(model) == ()
