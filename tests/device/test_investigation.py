"""What an investigation takes of a device: room for a whole step, chunks of a large tensor, and nothing afterwards."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.device.paths import PATHS, Training
from torch import nn

from finitune.monitor.probes import finite, ranks
from finitune.monitor.probes.finite import places
from finitune.monitor.replay.limits import Limits
from finitune.monitor.watch import watch

MIB = 2**20


def test_what_ranks_run_together_needs_room_for_a_whole_step(device):
    """One that is out of memory in the middle leaves the others waiting; alone it is an answer like another."""
    model = nn.Linear(512, 512, bias=False).to("counting")
    torch.get_device_module("counting").reset_peak_memory_stats()
    del_soon = torch.zeros(4 * MIB // 4, device="counting")
    del del_soon
    with device.memory_of(device.live + 4 * MIB):
        assert Limits().why_not(model) is None
        assert "a step takes" in Limits().why_not(model, together=True)
    with device.memory_of(device.live + 6 * MIB):
        assert Limits().why_not(model, together=True) is None


def test_a_large_tensor_is_searched_in_chunks(device, monkeypatch):
    chunk = 2**12
    monkeypatch.setattr(finite, "CHUNK", chunk)
    logits = torch.full((64, 1024), float("nan"), device="counting")
    with device.record() as trace:
        found = places(logits)
    assert (found.nan, len(found.indices)) == (logits.numel(), 4096)
    assert trace.peak - trace.before <= 32 * chunk
    assert logits.nbytes > trace.peak - trace.before


def test_what_a_replay_left_in_the_allocator_is_given_back(device, tmp_path, monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.get_device_module("counting"), "empty_cache", lambda: emptied.append(1), raising=False)
    training = Training(next(path for path in PATHS if path.name == "foreach"), "counting")
    with watch(training.model, training.optimizers[0], run_dir=tmp_path / "run"):
        training.step()
        assert not emptied
        training.spoil(float("nan"))
        training.step()
    assert emptied


@pytest.mark.parametrize(("backend", "where"), [("nccl", "counting"), ("cpu:gloo,cuda:nccl", "cpu"), ("gloo", "cpu")])
def test_what_lies_on_the_host_is_reduced_where_the_backend_can(device, monkeypatch, backend, where):
    """The gradients of an offloaded optimizer are on the CPU, where NCCL reduces nothing."""
    seen = []
    monkeypatch.setattr(torch.distributed, "get_backend", lambda _: backend)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values, *_, **__: seen.append(values.device.type))
    with contextlib.suppress(RuntimeError):
        torch.accelerator.current_accelerator()
    values = torch.ones(2)
    assert torch.equal(ranks.Group(size=2).reduced(values), values)
    assert seen == [where]
