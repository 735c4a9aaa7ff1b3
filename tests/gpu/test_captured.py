"""What is captured as a CUDA graph, or compiled, stays as it is: equal to the bit, no breaks, no recompilations."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from tests.device.bad_steps import same, weights
from torch import nn
from torch._dynamo.utils import counters

import finitune

STEPS, BAD = 6, 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).cuda()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 16, generator=generator).cuda(), torch.randint(4, (8,), generator=generator).cuda()


def watched(model, optimizer, run_dir):
    return finitune.watch(model, optimizer, run_dir=run_dir) if run_dir else contextlib.nullcontext()


def whole_step(run_dir):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x, y = batch(0)
    with watched(model, optimizer, run_dir):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        losses = []
        for step in range(STEPS):
            for static, new in zip((x, y), batch(step), strict=True):
                static.copy_(new)
            graph.replay()
            losses.append(loss.item())
    return losses, weights(model)


def graphed_model(run_dir):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(model, optimizer, run_dir):
        graphed = torch.cuda.make_graphed_callables(model, (batch(0)[0],))
        return loop(graphed, model, optimizer)


def graphed_part(run_dir):
    """Made before it is watched."""
    model = net()
    model[0] = torch.cuda.make_graphed_callables(model[0], (batch(0)[0],))
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(model, optimizer, run_dir):
        return loop(model, model, optimizer)


def compiled(run_dir, **options):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(model, optimizer, run_dir):
        return loop(torch.compile(model, fullgraph=True, **options), model, optimizer)


def compiled_before(run_dir):
    model = torch.compile(net(), fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(model, optimizer, run_dir):
        return loop(model, model, optimizer)


def reduced_overhead(run_dir):
    return compiled(run_dir, mode="reduce-overhead")


def compiled_optimizer(run_dir):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(lambda: optimizer.step())
    with watched(model, optimizer, run_dir):
        return loop(model, model, optimizer, step)


def loop(call, model, optimizer, update=None, bad=None):
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        if step + 1 == bad:
            x[2, 3] = math.nan
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        (update or optimizer.step)()
        losses.append(loss.item())
    return losses, weights(model)


WAYS = [whole_step, graphed_model, graphed_part, compiled, compiled_before, reduced_overhead, compiled_optimizer]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_healthy_run_is_as_without_the_guard(tmp_path, capfd, way):
    def run(run_dir):
        torch._dynamo.reset()
        counters.clear()
        losses, after = way(run_dir)
        return losses, after, sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]

    alone, again, guarded = run(None), run(None), run(tmp_path / "run")
    said = capfd.readouterr().err
    assert guarded[2:] == again[2:]
    assert "finitune itself" not in said
    if alone[0] != again[0] or not same(alone[1], again[1]):
        pytest.skip("what is compiled here is not the same twice")
    assert guarded[0] == alone[0]
    assert same(guarded[1], alone[1])


@pytest.mark.parametrize("options", [None, {}, {"mode": "reduce-overhead"}], ids=["graphed", "compiled", "reduced"])
def test_a_bad_step_is_discarded_and_located(tmp_path, options):
    torch._dynamo.reset()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(model, optimizer, tmp_path / "run"):
        if options is None:
            call = torch.cuda.make_graphed_callables(model, (batch(0)[0],))
        else:
            call = torch.compile(model, fullgraph=True, **options)
        losses, after = loop(call, model, optimizer, bad=BAD)
    assert [math.isnan(loss) for loss in losses] == [step + 1 == BAD for step in range(STEPS)]
    assert all(w.isfinite().all() for w in after)
    (incident,) = finitune.diagnose(str(tmp_path / "run")).incidents
    assert incident.step == BAD
