"""Two ranks of DistributedDataParallel: lost records and odd batches on one of them, or on both; in float32, and in
float16 under a loss scale.
"""

from __future__ import annotations

import pytest
from tests.monitor.heal.ranks import trained_alike

from finitune.recording import Recording

SCRIPT = """
import math
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1) if what["sgd"] else torch.optim.AdamW(ddp.parameters(), lr=1e-2)
if what["fails"] and rank == 1:
    from finitune.monitor.heal.remedies import drop_samples

    del drop_samples.guilty  # what it calls raises
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
generator = torch.Generator().manual_seed(rank + 1)
scaler = torch.amp.GradScaler("cpu", init_scale=what["scale"] or 1.0, enabled=bool(what["scale"]))

try:
    with finitune.watch(ddp, optimizer, run_dir=out + "/run", mode="heal") as guard:
        for step in range(1, what["steps"] + 1):
            x = torch.randn(8, 8, generator=generator)
            y = (x[:, :2] - x[:, 2:4]) * (1e4 if step in what["odd"] and rank in what["ranks"] else 1.0)
            if step in what["lost"] and rank in what["ranks"]:
                x[step % 8] = math.nan
            if step >= what["forgets"] and rank == 0:
                (watched,) = list(guard._optimizers)
                watched.past.steps.clear()
            with torch.autocast("cpu", torch.float16, enabled=scaler.is_enabled()):
                loss = F.mse_loss(ddp(x), y)
            scaler.scale(loss).backward()
            if what["clip"]:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(ddp.parameters(), what["clip"])
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
            note(model, optimizer, loss, scaler.get_scale())
finally:
    end()
dist.destroy_process_group()
"""
USUAL = {
    "sgd": False,
    "steps": 30,
    "lost": [],
    "odd": [],
    "clip": None,
    "ranks": [0, 1],
    "forgets": 1000,
    "fails": False,
    "scale": None,
}
SCALES = [None, 128.0]


def trained(tmp_path, **what):
    tmp_path.mkdir(exist_ok=True)
    first, said = trained_alike(tmp_path, USUAL | what, SCRIPT)
    assert all(entry[1] for entry in first)
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    return first, recording, said


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ranks", [[1], [0, 1]])
def test_each_rank_leaves_its_lost_records_out_of_the_step(ranks, scale, tmp_path):
    history, recording, said = trained(tmp_path, lost=[9, 17], ranks=ranks, clip=1.0, scale=scale)
    done = recording.events("remedy")
    assert [(e["remedy"], e["step"], e["state"]) for e in done] == [
        ("drop-samples", 9, "for its step"), ("drop-samples", 17, "for its step")
    ]  # fmt: skip
    assert recording.signals["skipped"].values.sum() == 0, "the steps are taken with the other samples"
    assert len({entry[0] for entry in history}) == len(history)
    assert {entry[4] for entry in history} == {scale or 1.0}, "no scale is lowered for what is no overflow"
    assert sum("drop-samples: sample" in err for err in said) == 1, "one rank speaks"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 2.0])
def test_both_go_back_and_leave_out_the_batches_that_did_the_damage(scale, tmp_path):
    """One rank sees the loss climb, and all numbers are finite."""
    whole, _, _ = trained(tmp_path / "whole", sgd=True, steps=70, scale=scale)
    history, recording, said = trained(tmp_path / "odd", sgd=True, steps=70, odd=[40], ranks=[1], scale=scale)
    done = [(e["remedy"], e["state"]) for e in recording.events("remedy")]
    assert done == [("rollback-and-skip", "applied"), ("rollback-and-skip", "kept")]
    assert recording.events("remedy")[0]["places"] == ["the batch of step 40"]
    mean = lambda entries: sum(entry[3] for entry in entries[-8:]) / 8  # noqa: E731
    assert mean(history) == pytest.approx(mean(whole), rel=0.1)
    assert max(entry[3] for entry in history[40:46]) > 1e3
    assert sum("rollback-and-skip: back to the weights" in err for err in said) == 1


@pytest.mark.slow
def test_stays_quiet_where_nothing_is_wrong(tmp_path):
    _, recording, _ = trained(tmp_path)
    assert not recording.events("remedy", "incident")


@pytest.mark.slow
def test_where_one_rank_keeps_other_steps_it_is_said_and_nobody_waits(tmp_path):
    _, recording, said = trained(tmp_path, sgd=True, steps=60, odd=[40], ranks=[1], forgets=41)
    assert {one["state"] for one in recording.events("remedy")} == {"advice"}
    assert any("not healed" in err for err in said)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_where_one_rank_cannot_find_its_samples_the_step_stays_discarded_and_nobody_waits(scale, tmp_path):
    history, recording, _ = trained(tmp_path, lost=[9], fails=True, scale=scale)
    assert {one["state"] for one in recording.events("remedy")} == {"advice"}
    assert history[8][0] == history[7][0] != history[9][0]
    assert [entry[4] for entry in history[7:10]] == ([scale, scale / 2, scale / 2] if scale else [1.0] * 3)
