"""What is kept of a step so that it can be run again: its own calls, and no more."""

from __future__ import annotations

import copy
import gc
import math
import weakref

import pytest
import torch
from tests.monitor.loop import SETUPS, Loop, batch
from torch import nn

from finitune.chapter import Sighting
from finitune.monitor.capture.step import Capture, MicroStep
from finitune.monitor.capture.step_calls import LONGEST_CHAIN, MAX_CALLS
from finitune.monitor.earlier_batches import EarlierBatch, Kept
from finitune.monitor.micro_steps import Pending
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.series import Series


def test_what_is_kept_of_a_line_search_is_one_evaluation_of_its_closure(tmp_path):
    """Run again as a yardstick, the batch must give the one loss that was read, not the sum over the search."""
    loop = Loop(**SETUPS["closure lbfgs"], bad=-1)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run") as watched:
        for _ in range(4):
            loop.step()
        (earlier,) = watched._incidents._earlier.values()
        assert len(earlier.batch().micro_steps) == 1


def test_forwards_without_backward_are_not_hoarded(tmp_path):
    loop = Loop(bad=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run") as watched:
        loop.step()
        for i in range(5 * MAX_CALLS):
            loop.model(batch(i)[0])
        assert len(watched.last_calls()) == MAX_CALLS
        with torch.no_grad():
            loop.model(batch(0)[0])
        loop.step()
        assert not len(watched.last_calls())
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert origin["repeats"]
    assert origin["why_not"] is None


def cells(tmp_path, *, factor=1.0, root_of=None):
    """The origins in a training whose recurrent cell is called again and again, each time fed by the time before; in
    step 3 its state is multiplied by `factor`, or the loss is the root of the output times `root_of`.
    """
    torch.manual_seed(0)
    cell, head = nn.GRUCell(2, 4), nn.Linear(4, 1)
    drop = nn.Dropout(0.2)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    with watch(cell, optimizer, run_dir=tmp_path / "run") as watched:
        for step in range(1, 5):
            h = torch.zeros(3, 4)
            for x in torch.randn(5 * MAX_CALLS, 3, 2):
                h = drop(cell(x, h)) * (factor if step == 3 else 1.0)
                assert len(watched.last_calls()) <= LONGEST_CHAIN
            out = head(h)
            loss = (
                out.square().mean()
                if root_of is None or step != 3
                else (out * root_of * torch.rand(())).square().mean().sqrt()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Recording.load(tmp_path / "run").events("origin")


def test_a_long_chain_of_cells_is_run_again_where_the_loss_is_bad(tmp_path):
    (origin,) = cells(tmp_path, factor=1e30)
    assert origin["repeats"]
    assert origin["why_not"] is None
    assert origin["origin"]["op"] == "aten.mul"


def test_a_long_chain_of_cells_is_not_read_where_the_gradients_alone_are_bad(tmp_path, capsys):
    (origin,) = cells(tmp_path, root_of=0.0)
    assert origin["repeats"] is None
    assert f"more than {MAX_CALLS} calls of modules feed one another" in origin["why_not"]
    assert "finitune run --watch-step 3 -- COMMAND" in capsys.readouterr().err


def test_a_long_chain_in_which_an_argument_was_overwritten_is_not_run_again(tmp_path):
    class Shift(nn.Module):  # its input is not kept for the backward, which would refuse
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x + self.by

    model = Shift()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        h = torch.zeros(3, 2)
        for _ in range(2 * MAX_CALLS):
            given = h * 1e3
            h = model(given)
            given.zero_()
        h.sum().backward()
        optimizer.step()
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert origin["repeats"] is None
    assert "overwritten in place" in origin["why_not"]


def test_of_a_long_chain_that_has_ended_nothing_is_kept_that_was_not_read(tmp_path):
    """Its arguments hold a graph, which the backward frees: run again, it would be gone."""
    cell = nn.GRUCell(2, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    with watch(cell, optimizer, run_dir=tmp_path / "run") as watched:
        loss = torch.zeros(())
        for length in (MAX_CALLS + 4, 5):
            h = torch.zeros(3, 4)
            for x in torch.randn(length, 3, 2):
                h = cell(x, h)
            loss = loss + h.mean() * math.inf
        assert all(call.randomness is not None for call in watched.last_calls())
        loss.backward()
        optimizer.step()
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert "RuntimeError" not in origin["why_not"]


@pytest.mark.parametrize(("level", "needed"), [("note", 8.0 / 0.005), ("suspicion", 4.0)])
def test_how_much_worse_an_earlier_batch_must_be_for_a_rise_to_be_a_divergence(level, needed):
    """Adam jumps near a minimum, and comes back: only a loss that is back where the run began is lost for certain."""
    loss = Series(range(1, 201), [*([8.0] * 20), *([0.005] * 180)])
    earlier = EarlierBatch()
    earlier._kept = Kept(100, Capture(), 0.005)
    seen = Sighting(step=200, text="", level=level, numbers={"loss": 0.08, "before": 0.005})
    assert earlier.lost(loss, seen) == pytest.approx(needed)


def climbed(level: str, loss: float) -> Sighting:
    return Sighting(step=1, text="", level=level, numbers={"loss": loss})


def test_what_becomes_a_suspicion_is_asked_of_though_it_was_a_note_a_few_steps_ago():
    earlier, note, suspicion = EarlierBatch(), climbed("note", 9.0), climbed("suspicion", 9.0)
    asked = [earlier.asked_at(*one) for one in [(23, note), (24, note), (38, suspicion), (39, suspicion)]]
    assert asked == [False, True, False, True]


def test_a_loss_that_has_run_away_is_asked_of_though_it_was_a_few_steps_ago():
    earlier = EarlierBatch()
    asked = [earlier.asked_at(step, climbed("note", loss)) for step, loss in [(40, 36.0), (41, 3500.0), (42, 4000.0)]]
    assert asked == [False, True, False]


def test_a_batch_whose_loss_is_zero_is_no_measure(tmp_path):
    """As of an episode with one way to go, whose reward is that of the baseline."""
    loop = Loop(bad=-1)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run") as watched:
        loop.step()
        (earlier,) = watched._incidents._earlier.values()
        first = earlier.step
        earlier.keep(99, Capture(micro_steps=earlier._kept.capture.micro_steps), (0.0,), Series([1], [1.0]))
        assert earlier.step == first == 1
    seen = Sighting(step=100, text="", level="note", numbers={"loss": 8.0, "before": 0.5})
    assert earlier.lost(Series([1, 2], [0.0, 0.0]), seen) == pytest.approx(4.0)


def test_a_loss_of_nothing_is_no_level_of_the_run():
    """A batch without labels has a loss of exactly 0, and says nothing of a jump."""
    earlier = EarlierBatch()
    assert earlier._jump(Series(range(1, 6), [0.2, 0.0, 0.25, 0.2, 2.0])) == pytest.approx(8.0)
    assert earlier._jump(Series(range(1, 6), [0.2, -0.1, 0.25, 0.2, 2.0])) is None


def test_a_constant_that_is_computed_in_the_sum_is_known_with_an_earlier_batch(tmp_path):
    x, y = torch.randn(6, 3), torch.tensor([0.5, math.nan, 1.0, 0.2, math.nan, 0.1])
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def masked_loss(pred, y):
        known = ~torch.isnan(y)
        return ((pred - torch.nan_to_num(y)).square() * known).sum() / known.sum()

    with watch(model, optimizer, run_dir=tmp_path / "run") as watched:
        pred = model(x).squeeze(1)
        loss = masked_loss(pred, y)
        loss.backward()
        optimizer.step()
        (earlier,) = watched._incidents._earlier.values()
        assert earlier.step == 1
        assert earlier.is_damaged(model, 1.3) is False
        with torch.no_grad():
            model.weight.add_(100.0)
        assert earlier.is_damaged(model, 1.3) is True


def speaks(tmp_path, model, loss_of):
    """Whether the batch of one step is a fair measure of the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run") as watched:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
        (earlier,) = watched._incidents._earlier.values()
        seen = Sighting(step=2, text="", level="note", numbers={"loss": 8.0, "before": 2.0})
        return earlier.speaks_of(Series([1], [2.2]), seen)


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_is_given_whole_numbers_alone_compares_with_classes(tmp_path, whole):
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 9)

        def forward(self, ids, targets):
            scores = self.table(ids)
            return (scores.log_softmax(-1).gather(-1, targets.long().unsqueeze(-1))).mean().neg()

    torch.manual_seed(0)
    model = Language()
    ids = torch.arange(8)
    targets = ids + 1 if whole else (ids + 1).float()
    assert speaks(tmp_path, model, lambda: model(ids, targets)) == whole


@pytest.mark.parametrize("named", [True, False])
def test_what_each_token_has_lost_is_of_classes_where_the_model_is_given_labels(tmp_path, named):
    """As TRL's trainers compute it; what a policy is given under another name may be its own actions."""

    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 9)

        def forward(self, ids, labels=None, actions=None):
            wanted = actions if labels is None else labels
            return self.table(ids).log_softmax(-1).gather(-1, wanted.unsqueeze(-1))

    torch.manual_seed(0)
    model, ids = Language(), torch.arange(8)
    wanted = {"labels" if named else "actions": ids + 1}
    assert speaks(tmp_path, model, lambda: (-model(ids, **wanted)).sum().div(8)) == named


def test_a_model_that_the_loop_has_replaced_is_not_kept(tmp_path):
    """Nor is its batch: it says nothing of the model that is trained now, of which another is kept."""

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, run_dir=tmp_path / "run") as watched:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
        (earlier,) = watched._incidents._earlier.values()
        assert earlier.batch().micro_steps[0].calls[0].module is model
        was, model, optimizer = weakref.ref(model), copy.deepcopy(model), None
        gc.collect()
        assert was() is None
        assert earlier.batch() is None


def fetched(model, optimizer):
    """How often what the loop packs is taken out again, in steps with a penalty of its own beside the loss."""
    times = 0

    def unpack(tensor):
        nonlocal times
        times += 1
        return tensor

    for _ in range(3):
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            loss = (model(torch.ones(2, 4)) - 1).square().mean()
        model.weight.square().sum().backward()
        loss.backward()
        optimizer.step()
    return times


def test_what_a_loop_packs_is_taken_out_as_often_as_without_finitune(tmp_path):
    models = [nn.Linear(4, 1), nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    with watch(models[0], optimizers[0], run_dir=tmp_path / "run"):
        watched = fetched(models[0], optimizers[0])
    assert watched == fetched(models[1], optimizers[1])


def test_a_backward_waits_for_no_optimizer_that_is_gone():
    pending, micro = Pending(), MicroStep(touched={1, 2})
    pending.micro_steps = [micro]
    pending.stepped(2, [micro])
    pending.begin({1, 2})
    assert pending.micro_steps == [micro]
    pending.begin({2})
    assert pending.micro_steps == []


def test_of_several_models_a_call_waits_until_each_optimizer_has_stepped(tmp_path):
    models = [nn.Linear(4, 1), nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    with watch(models[0], optimizers[0], run_dir=tmp_path / "run") as watched:
        watch(models[1], optimizers[1])
        waiting = []
        for _ in range(2):
            models[0](torch.ones(2, 4))  # as a generator of which a critic learns
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                waiting.append(len(watched.last_calls()))
    assert waiting == [1, 0, 1, 0]
