"""A rate that is too high for the embedding alone: it learns slower from then on, the other tensors do not."""

from __future__ import annotations

import statistics

import pytest
import torch
from tests.monitor.heal.leading import Leading
from tests.monitor.heal.small import taken_again

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.heal.bounds import Shrink
from finitune.monitor.heal.cure import Unable
from finitune.monitor.heal.remedies import shrink_embedding_updates
from finitune.monitor.watch import watch
from finitune.recording import Recording


def healed(loop, directory):
    with watch(loop.model, loop.optimizer, run_dir=directory, mode="heal"):
        loop.train()
    return [one for one in Recording.load(directory).events("remedy") if one["state"] != "advice"]


def last(loop):
    return statistics.mean(loop.losses[-16:])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_other_tensors_keep_their_rate(seed, tmp_path, capsys, monkeypatch):
    loop, slower = Leading(seed=seed), Leading(seed=seed)
    events = healed(loop, tmp_path / "run")
    assert [(one["remedy"], one["state"]) for one in events] == [
        ("shrink-embedding-updates", "applied"), ("shrink-embedding-updates", "kept")
    ]  # fmt: skip
    assert (events[0]["cause"], events[0]["targets"]) == ("lr-too-high", ["model.embed_tokens.weight"])
    said = capsys.readouterr().err
    assert "times the update of model.embed_tokens.weight. Finite with it, not with that of model.layers" in said
    bad = next(one for one in diagnose(tmp_path / "run").incidents if one.action == "rolled-back")
    assert bad.causes[0].proved

    def unable(_):
        raise Unable("not tried")

    monkeypatch.setattr(shrink_embedding_updates, "cure", unable)
    events = healed(slower, tmp_path / "slower")
    assert {one["remedy"] for one in events} == {"lower-learning-rate"}
    assert last(loop) < last(slower), "a lower rate for all learns less"


@pytest.mark.slow
def test_steps_that_were_shrunk_are_taken_again_to_the_same_bits(tmp_path):
    loop = Leading(steps=80)
    before, after = taken_again(loop, tmp_path / "run")
    assert after == before


@pytest.mark.slow
def test_stays_quiet_where_every_tensor_has_the_rate(tmp_path):
    events = healed(Leading(alone=False, times=1000.0), tmp_path / "run")
    assert {one["remedy"] for one in events} == {"lower-learning-rate"}


def test_stays_quiet_in_a_healthy_run(tmp_path):
    loop, alone = Leading(times=1.0, steps=70), Leading(times=1.0, steps=70).train()
    assert not healed(loop, tmp_path / "run")
    assert loop.losses == alone.losses


def test_the_update_is_shrunk_whatever_the_optimizer():
    """Adam divides the size of a gradient away; it is the update that is multiplied."""
    weight, other = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    optimizer = torch.optim.Adam([weight, other], lr=0.1)
    shrink = Shrink(place=0, factor=0.1)
    weight.grad, other.grad = torch.ones(3, 2), torch.ones(3, 2)
    shrink.before(optimizer, [])
    optimizer.step()
    shrink.after(optimizer)
    torch.testing.assert_close(1 - weight, 0.1 * (1 - other))
