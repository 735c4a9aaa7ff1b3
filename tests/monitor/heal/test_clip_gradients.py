"""A batch whose gradient is far beyond the others goes into the weights unclipped: the last steps are taken again."""

from __future__ import annotations

import statistics

import pytest
import torch
from tests.monitor.heal.small import BAD, Regression, taken_again

from finitune.monitor.heal.remedies import rollback_and_skip
from finitune.monitor.heal.tensor_clip import MEMORY, RELATIVE, TensorClip
from finitune.monitor.watch import watch
from finitune.recording import Recording


@pytest.fixture(autouse=True)
def not_skipped(monkeypatch):
    """Single batches are left out first; what is tested here comes after that."""
    monkeypatch.setattr(rollback_and_skip, "MOST", 0)


def healed(loop, tmp_path):
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run", mode="heal"):
        loop.train()
    return Recording.load(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("bad", [BAD, 15])  # the batch of step 16 would be kept as an earlier one
def test_the_run_learns_as_if_the_batch_had_been_an_ordinary_one(bad, tmp_path):
    loop, reference = Regression("outlier", steps=60, bad=bad), Regression("", steps=60)
    reference.optimizer = torch.optim.SGD(reference.model.parameters(), lr=0.1)
    recording = healed(loop, tmp_path)
    reference.train()
    assert max(loop.losses[bad - 1 :]) > 1e6
    assert statistics.mean(loop.losses[-8:]) == pytest.approx(statistics.mean(reference.losses[-8:]), rel=0.1)
    events = recording.events("remedy")
    assert [(e["remedy"], e["state"]) for e in events] == [("clip-gradients", "applied"), ("clip-gradients", "kept")]
    assert events[0]["cause"] == "missing-gradient-clipping"
    assert bad < events[0]["step"] <= bad + 4


@pytest.mark.slow
def test_steps_that_were_clipped_are_taken_again_to_the_same_bits(tmp_path):
    loop = Regression("outliers", steps=BAD + 20)
    before, after = taken_again(loop, tmp_path / "run")
    assert after == before


def test_stays_quiet_where_the_loop_clips_by_itself(tmp_path):
    recording = healed(Regression("outlier", clip=1.0), tmp_path)
    assert not recording.events("remedy")


def test_each_tensor_is_clipped_to_twice_what_it_usually_is():
    clip, ones = TensorClip(), torch.ones(4)
    for _ in range(5):
        clip.clip([ones.clone(), None, 100 * ones])
    far, usual = 50 * ones, 100 * ones
    clip.clip([far, None, usual])
    torch.testing.assert_close(far, RELATIVE * ones)
    torch.testing.assert_close(usual, 100 * ones)
    assert clip.usual[0] == pytest.approx(MEMORY * 2 + (1 - MEMORY) * RELATIVE * 2)


def test_a_tensor_without_a_gradient_so_far_is_left_as_it_is():
    """B of LoRA is zero at first, and with it the gradient of A."""
    clip, later = TensorClip(), 7 * torch.ones(3)
    clip.clip([torch.zeros(3)])
    clip.clip([later])
    torch.testing.assert_close(later, 7 * torch.ones(3))
