"""Untrained rows of the running model are drawn anew; undone bit for bit; undone where they do not hold."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
import torch

from finitune.diagnosis.recorded import diagnose
from finitune.gym.data import batches
from finitune.gym.fault import faults
from finitune.gym.loop import Options, prepare, train
from finitune.gym.models import embedding_rows, tiny
from finitune.monitor.heal.masters import is_fragmented, masters_of, write_fragment
from finitune.monitor.heal.remedies.reinit_token_rows import new_rows, write_rows
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch
from finitune.recording import Recording

TOKEN, BAD = 6, 3
NAME = "untrained-token-embeddings"


@pytest.fixture(autouse=True)
def fast_float16():
    with float16_on_cpu():
        yield


def autocast_run(*, faulty=True, steps=30):
    """float32 weights under float16 autocast, a row of zeros at position 0 from step BAD on."""
    model = tiny("llama", layers=4, initializer_range=0.1)
    with torch.no_grad():
        rows = embedding_rows(model).mul_(0.2)
        if faulty:
            rows[TOKEN] = 0
    data = batches(steps)
    for batch in data[BAD - 1 :]:
        batch["input_ids"][:, 0] = TOKEN
        batch["labels"][:, 0] = TOKEN
    options = Options(dtype="float16-autocast", initial_scale=2.0**14)
    return prepare(model, data, lambda parameters: torch.optim.AdamW(parameters, lr=2e-3), options)


def digest(run):
    tensors = [*run.model.state_dict().values(), *(t for e in run.optimizer.state.values() for t in e.values())]
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()


def remedies_of(run_dir):
    return [(e["step"], e.get("remedy"), e["state"]) for e in Recording.load(run_dir).events("remedy")]


def test_the_run_goes_on_and_learns_as_one_that_never_had_the_fault(tmp_path, capsys):
    run, whole = autocast_run(), autocast_run(faulty=False)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal"):
        losses = [step.loss for step in train(run)]
    expected = [step.loss for step in train(whole)]
    (applied, kept) = remedies_of(tmp_path / "run")
    assert applied[1:] == ("reinit-token-rows", "applied")
    assert kept[1:] == ("reinit-token-rows", "kept")
    assert sum(losses[-5:]) / 5 < sum(expected[-5:]) / 5 + 0.1
    assert losses[-1] < losses[0] - 0.2
    (incident,) = [one for one in diagnose(tmp_path / "run").incidents if one.level == "incident"]
    assert (incident.action, incident.causes[0].cause, incident.causes[0].proved) == ("healed", NAME, True)
    said = capsys.readouterr().err
    assert said.count("healed (untrained-token-embeddings, proved)") == 1
    assert "is kept: 16 finite steps" in said
    assert "healed 1 time" in said


def test_where_masters_hold_the_weights_they_get_the_rows_too(tmp_path):
    fault = faults()[NAME]
    run = fault.build("llama", tmp_path)
    steps = []
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal") as watched:
        for step in train(run):
            steps.append(step)
            if step.step == fault.step + 4:
                break
        assert not watched.closed
    row = embedding_rows(run.model)[TOKEN]
    (master,) = masters_of(run.optimizer, embedding_rows(run.model))
    assert torch.equal(master[TOKEN].half(), row)
    assert row.float().norm() > 0.1
    assert remedies_of(tmp_path / "run")[0] == (fault.step, "reinit-token-rows", "applied")


def test_undo_gives_the_same_bits(tmp_path):
    run = autocast_run(steps=4)
    list(train(run))
    before, random = digest(run), torch.get_rng_state()
    weight = embedding_rows(run.model)
    drawn = new_rows(weight, [TOKEN, 9])
    assert torch.equal(drawn, new_rows(weight, [TOKEN, 9])), "the same again"
    undo = write_rows(weight, [TOKEN, 9], drawn)
    assert digest(run) != before
    undo()
    assert digest(run) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_a_remedy_that_does_not_hold_is_undone(tmp_path, capsys):
    """The loop itself sets the row to zero after each step, so the same is proved again."""
    run = autocast_run()
    weight = embedding_rows(run.model)
    watched = watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode="heal")
    hook = run.optimizer.register_step_post_hook(lambda *_: weight.data[TOKEN].zero_())
    with pytest.raises(Stopped, match="persists"):
        list(train(run))
    hook.remove()
    assert watched.closed
    states = [state for _, _, state in remedies_of(tmp_path / "run")]
    assert states[:3] == ["applied", "undone", "advice"]
    said = capsys.readouterr().err
    assert "is undone: the same cause is proved again" in said
    assert "reinit-token-rows: it did not hold; prepend-bos is advice" in said
    assert diagnose(tmp_path / "run").incidents[0].action == "skipped-step"


@pytest.mark.parametrize("mode", ["observe", "guard"])
def test_other_modes_change_no_row(mode, tmp_path):
    run = autocast_run(steps=6)
    with watch(run.model, run.optimizer, run_dir=tmp_path / "run", mode=mode), contextlib.suppress(Stopped):
        list(train(run))
    assert not remedies_of(tmp_path / "run")
    assert embedding_rows(run.model)[TOKEN].norm() < 0.1


def test_masters_are_found_by_their_values_or_missed_in_the_open():
    weight = torch.nn.Parameter(torch.randn(4, 2).half())
    master = weight.detach().float() + 1e-6

    class Own:
        def __init__(self, held):
            self.groups = {"all": [[held]]}
            self.param_groups = [{"params": [weight]}]

        def step(self):
            pass

    assert masters_of(Own(master), weight)[0] is master
    assert masters_of(Own(master + 1), weight) is None
    assert masters_of(torch.optim.SGD([weight], lr=1.0), weight) == []
    weight.requires_grad_(False)
    assert masters_of(Own(master + 1), weight) == []


class Mapping:
    """As DeepSpeed keeps what one rank holds of the masters of a weight."""

    def __init__(self, flat, start, count):
        self.hp_fragment = flat[start : start + count].clone()
        self.lp_fragment_address = type("Address", (), {"start": start, "numel": count})()


@pytest.mark.parametrize(("start", "count"), [(0, 40), (0, 11), (11, 12), (23, 17), (4, 4)])
def test_a_part_of_the_masters_gets_its_part_of_the_rows(start, count):
    weight = torch.nn.Parameter(torch.zeros(10, 4).half())
    masters = torch.arange(40.0)
    weight._hp_mapping = Mapping(masters, start, count)
    ids, rows = [1, 5], torch.tensor([[-1.0] * 4, [-5.0] * 4])
    undo = write_fragment(weight, ids, rows)
    whole = masters.clone().reshape(10, 4)
    whole[ids] = rows
    assert torch.equal(weight._hp_mapping.hp_fragment, whole.flatten()[start : start + count])
    undo()
    assert torch.equal(weight._hp_mapping.hp_fragment, masters[start : start + count])


def test_a_rank_may_hold_nothing_of_them():
    weight = torch.nn.Parameter(torch.zeros(10, 4))
    weight._hp_mapping = None
    assert is_fragmented(weight)
    write_fragment(weight, [1], torch.ones(1, 4))()
