"""A batch that is an object: its tensors are inputs as those of a dictionary are."""

from __future__ import annotations

import math
from collections import UserDict
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from finitune.diagnosis.diagnose import diagnose
from finitune.monitor.capture.batch_objects import named_within, with_tensors
from finitune.monitor.capture.step_calls import Calls
from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    y: torch.Tensor


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    y: torch.Tensor


class Attributed(dict):
    __getattr__ = dict.__getitem__


class Encoded(UserDict):
    def __getattr__(self, name):
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


class Stored:
    """Keeps what it holds in a store of its own, as batches of graphs do."""

    def __init__(self, **held):
        self._store = SimpleNamespace(_mapping=held)

    def __getattr__(self, name):
        if name == "_store":
            raise AttributeError(name)
        return self._store._mapping[name]


CLASSES = {
    "frozen": Frozen, "slots": Slotted, "plain": SimpleNamespace, "dict": Attributed, "userdict": Encoded,
    "stored": Stored,
}  # fmt: skip


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, batch):
        return self.head(torch.relu(self.inner(batch.x)))


def trained(kind, run_dir=None, bad: float | None = None):
    torch.manual_seed(0)
    model = Scorer()
    optimizer = torch.optim.AdamW(model.parameters())
    with nullcontext() if run_dir is None else watch(model, optimizer, run_dir=run_dir):
        for step in range(1, 7):
            batch = CLASSES[kind](x=torch.randn(6, 4), y=torch.randint(0, 2, (6,)))
            if step == BAD and bad is not None:
                batch.x[2, 1] = bad
            loss = nn.functional.cross_entropy(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_healthy_run_is_bit_identical_and_silent(tmp_path, kind):
    assert all(map(torch.equal, trained(kind), trained(kind, tmp_path / "run")))
    assert not Recording.load(tmp_path / "run").events("incident", "broken")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_bad_in_it_is_an_input_and_its_sample_is_left_out(tmp_path, kind, bad):
    trained(kind, tmp_path / "run", bad)
    (incident,) = diagnose(tmp_path / "run").incidents
    assert incident.step == BAD
    if bad == -float("inf"):  # alone it may be a mask
        return
    assert incident.origin is not None
    assert (incident.origin.phase, incident.origin.rows) == ("input", [2])
    assert incident.origin.tensor in ("input 0.x", "input 0['x']")
    assert (incident.causes[0].cause, incident.causes[0].proved) == ("bad-data-sample", True)


def test_names_and_copies():
    batch = SimpleNamespace(x=torch.ones(3), parts=[torch.zeros(3), {"m": torch.ones(3)}], name="a", n=3)
    assert [name for name, _ in named_within(batch)] == [".x", ".parts[0]", ".parts[1]['m']"]
    half = with_tensors(batch, lambda tensor: tensor[:1])
    assert [len(tensor) for _, tensor in named_within(half)] == [1, 1, 1]
    assert [len(tensor) for _, tensor in named_within(batch)] == [3, 3, 3], "the batch itself is as it was"
    assert half.name == "a"


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_a_named_tuple_within_one_stays_one():
    half = with_tensors(SimpleNamespace(pair=Pair(torch.ones(3), torch.zeros(3))), lambda tensor: tensor[:1])
    assert (len(half.pair.left), len(half.pair.right)) == (1, 1)


def test_a_state_of_a_class_of_its_own_feeds_the_next_call():
    """As that of a recurrent cell, in a dictionary of another class than pytree knows."""
    cell, calls = nn.Linear(2, 2), Calls()
    fed = Attributed(h=cell(torch.ones(1, 2)))
    for chain in (0, 1, 2):
        assert calls._chain == chain
        calls.end(calls.begin(cell, (fed,), {}), cell(fed.h), failed=False)


def test_what_is_no_batch_is_left_alone():
    model = nn.Linear(2, 2)
    for one in (model, torch.optim.SGD(model.parameters()), torch.float32, len, int, "text", None, 3.0):
        assert named_within(one) == []
        assert with_tensors(one, torch.zeros_like) is one


def test_what_is_huge_or_holds_itself_costs_little():
    buffer = SimpleNamespace(frames=[torch.zeros(1)] * 100_000)
    assert named_within(buffer) == []
    ring = SimpleNamespace(x=torch.zeros(1))
    ring.next = ring
    assert len(named_within(ring)) == 4
    tree = SimpleNamespace(
        **{f"a{n}": SimpleNamespace(**{f"b{m}": torch.zeros(1) for m in range(60)}) for n in range(60)}
    )
    assert len(named_within(tree)) < 600


class Sealed:
    """Cannot be copied."""

    def __init__(self):
        self.x = torch.ones(2)

    def __copy__(self):
        raise RuntimeError


def test_one_that_cannot_be_copied_is_not_cut():
    with pytest.raises(ValueError, match="Sealed"):
        with_tensors(Sealed(), lambda tensor: tensor[:1])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, batch):
        logits = self.head(self.embed(batch.ids))
        return self.criterion(logits.flatten(0, 1), batch.labels.flatten())


@pytest.mark.parametrize("ignored", [True, False])
def test_labels_of_a_batch_that_is_one_argument(tmp_path, ignored):
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters())
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 7):
            ids = torch.randint(0, 9, (3, 5))
            batch = SimpleNamespace(ids=ids, labels=ids.masked_fill(torch.tensor(step == BAD and ignored), -100))
            loss = model(batch) * (math.inf if step == BAD and not ignored else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, "all-labels-ignored" in [one.cause for one in incident.causes]) == (BAD, ignored)
