"""The run's own checkpoints with finite weights are known, and told of where a run cannot go back by itself."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from tests.monitor.heal.test_rollback_and_skip import Shards
from torch import nn

from finitune.monitor.clean_saves import CleanSaves, renamed
from finitune.monitor.heal import past
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.repairs.repair import repair


class Saving(Shards):
    """Writes a checkpoint every ten steps."""

    def __init__(self, directory, **more):
        super().__init__(**more)
        self.optimizer.register_step_post_hook(lambda *_: self.save(directory))
        self.step = 0

    def save(self, directory):
        self.step += 1
        if self.step % 10 == 0:
            directory.mkdir(exist_ok=True)
            torch.save({"model": self.model.state_dict()}, directory / f"weights-{self.step}.pt")


def test_fires_where_the_last_steps_are_not_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(past, "free_bytes", lambda _: 1000)
    loop = Saving(tmp_path / "out", odd=(40,), unit=1e4)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
    recording = Recording.load(tmp_path / "run")
    assert [event["step"] for event in recording.events("saved")][:3] == [10, 20, 30]
    (said,) = [event for event in recording.events("remedy") if event.get("resume_from")][:1]
    good = next(event for event in recording.events("incident") if event["id"] == said["incident"])["last_good"]
    expected = {"path": str(tmp_path / "out" / f"weights-{good // 10 * 10}.pt"), "step": good // 10 * 10}
    assert said["resume_from"] == expected
    assert f"resume from {expected['path']}, the last checkpoint whose weights are finite" in capsys.readouterr().err
    (one,) = repair(from_run=tmp_path / "run").by_hand
    assert one.remedy.text.startswith(f"resume from {expected['path']}")


@pytest.mark.slow
def test_stays_quiet_where_the_run_went_back_by_itself(tmp_path):
    loop = Saving(tmp_path / "out", odd=(40,), unit=1e4)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
    (one,) = repair(from_run=tmp_path / "run").by_hand
    assert one.places == ["the batch of step 40"]


@pytest.fixture
def small(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run") as monitor:

        def step():
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        yield model, step, lambda: monitor._run.saves


def test_several_files_of_one_directory_are_one_checkpoint(small, tmp_path):
    model, step, saves = small
    whole = tmp_path / "checkpoint-1"
    whole.mkdir()
    save_file({"weight": model.weight.detach()}, whole / "model-00001-of-00002.safetensors")
    assert saves().newest() is None, "half of it"
    save_file({"bias": model.bias.detach()}, whole / "model-00002-of-00002.safetensors")
    assert (saves().newest().path, saves().newest().step) == (str(whole), 1)
    step()
    torch.save(model.state_dict(), tmp_path / "last.pt")
    assert (saves().newest().path, saves().newest().step) == (str(tmp_path / "last.pt"), 2)
    assert saves().newest(latest=1).step == 1
    (tmp_path / "last.pt").unlink()
    assert saves().newest().step == 1, "what is gone is not told of"


def test_what_is_not_finite_or_holds_no_weights_is_none(small, tmp_path):
    model, _, saves = small
    torch.save({"epoch": 1, "other": torch.ones(3)}, tmp_path / "state.pt")
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    torch.save(model.state_dict(), tmp_path / "bad.pt")
    assert saves().newest() is None


@pytest.mark.parametrize("name", [".saving/checkpoint-5", "tmp-checkpoint-5", "checkpoint-5.tmp"])
def test_what_was_renamed_is_found(name, tmp_path):
    saves = CleanSaves()
    saves.written(str(tmp_path / name / "model.safetensors"), 5, {1}, {1})
    (tmp_path / "checkpoint-5").mkdir()
    assert saves.newest().path == str(tmp_path / "checkpoint-5") == str(renamed(tmp_path / name))
