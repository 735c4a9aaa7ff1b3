"""The training loops of the budget are what they are meant to be, and the instrument sees what a guard might do."""

from __future__ import annotations

import pytest
import torch
from tests.device.budget import BUDGETS, SAMPLED, Budget, costs, over
from tests.device.counting import ASYNC, BLOCKING
from tests.device.paths import LOGITS_BYTES, MICRO_BATCH_BYTES, PATHS, RANKED, Training

OWN_READS = {"GradScaler": {1}, "GradScaler, fused": {0}, "LBFGS": range(5, 20)}  # LBFGS: a read per pair remembered
"""Reads for which the loop itself waits in a step, by the beginning of a path's name; the longest one counts."""


def own_reads(name):
    return next((OWN_READS[key] for key in sorted(OWN_READS, reverse=True) if name.startswith(key)), {0})


def named(name):
    return next(path for path in PATHS if path.name == name)


def test_every_path_has_a_budget():
    assert sorted(BUDGETS) == sorted(path.name for path in PATHS + RANKED)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_path_trains_as_on_the_cpu_and_reads_what_it_is_known_to_read(device, path):
    here, there = Training(path, "counting"), Training(path, "cpu") if path.name != "rate on the device" else None
    for step in range(3):
        with device.record() as trace:
            here.step()
        if step:
            assert trace.count(BLOCKING) in own_reads(path.name), trace.whats(BLOCKING)
        assert trace.count(ASYNC) == path.accumulate
        if there:  # capturable optimizers are for devices only
            there.step()
            assert all(
                torch.equal(a.cpu(), b) for a, b in zip(*(t.model.parameters() for t in (here, there)), strict=True)
            )


def test_a_bad_step_without_a_guard_spoils_the_weights(device):
    training = Training(named("foreach"), "counting")
    training.spoil(float("nan"))
    training.step()
    assert not training.model.head.weight.isfinite().all()


def test_a_step_that_reads_nothing_can_be_captured(device):
    training = Training(named("rate on the device"), "counting")
    training.step()
    with device.capturing():
        training.step()


def reads(optimizer, _args, _kwargs, kept):
    optimizer.param_groups[0]["params"][0].grad.sum().item()


def queues(optimizer, _args, _kwargs, kept):
    optimizer.param_groups[0]["params"][0].grad.sum().to("cpu", non_blocking=True)


def keeps(optimizer, _args, _kwargs, kept):
    kept.append(torch.zeros((SAMPLED + 2 * MICRO_BATCH_BYTES) // 4, device="counting"))
    del kept[:-1]


def copies(optimizer, _args, _kwargs, kept):
    [p.clone() for group in optimizer.param_groups for p in group["params"]]


GUARDS = {
    "nothing": (lambda *_: None, []),
    "one read": (reads, []),
    "two reads": (lambda *a: (reads(*a), reads(*a)), ["reads in the first step: 2, at most 1", "reads: 2, at most 1"]),
    "two queued copies": (lambda *a: (queues(*a), queues(*a)), ["queued copies: 2, at most 1"]),
    "a tensor kept": (keeps, ["bytes until the verdict", "bytes kept", "bytes at the peak"]),
    "a copy of the weights": (copies, ["bytes at the peak"]),
}


@pytest.mark.parametrize("name", GUARDS)
def test_the_instrument_sees_what_is_added(device, tmp_path, name):
    hook, expected = GUARDS[name]

    def watch(training, run_dir, watches):
        kept = []
        for optimizer in training.optimizers:
            handle = optimizer.register_step_pre_hook(lambda *given: (hook(*given, kept), None)[1])
            watches.callback(handle.remove)

    path = named("SGD with momentum")  # whose update takes no memory of its own
    lines = over(BUDGETS[path.name], costs(device, path, tmp_path, watch=watch))
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


def test_the_instrument_sees_a_copy_between_backward_and_the_verdict(device, tmp_path):
    def watch(training, run_dir, watches):
        kept = []
        handle = training.model.register_forward_hook(lambda module, args, output: kept.append(output.detach().clone()))
        watches.callback(handle.remove)
        training.optimizers[0].register_step_post_hook(lambda *_: kept.clear())

    (line, peak) = over(Budget(), costs(device, named("foreach"), tmp_path, watch=watch))
    assert line == f"bytes until the verdict: {LOGITS_BYTES}, at most {Budget().until}"
    assert peak.startswith("bytes at the peak")
