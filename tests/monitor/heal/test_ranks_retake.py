"""Two ranks of DistributedDataParallel take the last steps again together: the same weights on both, nobody waits."""

from __future__ import annotations

import math

import pytest
from tests.monitor.heal.ranks import BEGIN, trained_alike
from tests.monitor.test_ranks import two_ranks

from finitune.recording import Recording

SCRIPT = """
from finitune.gym.data import batches
from finitune.gym.models import tiny

model = tiny("llama", hidden=32, vocabulary=128)
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=what["rate"])
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
data = batches(40, rows=4, length=16, vocabulary=128, seed=rank + 1)
scaler = torch.amp.GradScaler("cpu", init_scale=what["scale"] or 1.0, enabled=bool(what["scale"]))

guard = finitune.watch(ddp, optimizer, run_dir=out + "/run", mode="heal")
try:
    with guard:
        for step, batch in enumerate(data, 1):
            with torch.autocast("cpu", torch.float16, enabled=scaler.is_enabled()):
                loss = ddp(**batch).loss
            if step == what["lost"] and rank == 1:
                (watched,) = list(guard._optimizers)
                del watched.past.steps[-1:]
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
            note(model, optimizer, loss)
finally:
    end()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 16.0])
def test_both_ranks_take_the_steps_again_and_learn(scale, tmp_path):
    first, said = trained_alike(tmp_path, {"rate": 100.0, "lost": 0, "scale": scale}, SCRIPT)
    assert all(entry[1] for entry in first)
    recording = Recording.load(tmp_path / "run")
    applied = [event for event in recording.events("remedy") if event["state"] == "applied"]
    assert {event["remedy"] for event in applied} == {"lower-learning-rate"}
    rates = sorted({entry[2] for entry in first}, reverse=True)
    taken = 40 if scale is None else 41  # the loop's schedule does not wait for what its scaler skips
    assert rates == pytest.approx([100 * 0.999**n for n in range(1, taken)]), "it waits at the step that was discarded"
    assert sum(entry[3] for entry in first[-5:]) / 5 < math.log(128)
    assert sum("lower-learning-rate: the last" in err for err in said) == 1, "one rank speaks"
    assert not recording.events("broken")


@pytest.mark.slow
def test_where_one_rank_keeps_other_steps_nothing_is_done_and_nobody_waits(tmp_path):
    """As where one of them has no room for its copies."""
    codes, said, (first, second) = two_ranks(
        tmp_path, {"rate": 100.0, "lost": 4, "scale": None}, source=BEGIN + SCRIPT, timeout=240
    )
    assert codes[0] == codes[1], said
    assert [entry[:3] for entry in first] == [entry[:3] for entry in second]
    assert not [
        e for e in Recording.load(tmp_path / "run").events("remedy") if e["state"] == "applied" and e["step"] < 6
    ]
