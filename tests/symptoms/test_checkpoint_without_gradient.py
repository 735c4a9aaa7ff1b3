from __future__ import annotations

import functools

import pytest
from tests.symptoms.runs import series

from finitune.symptoms.checkpoint_without_gradient import see


def test_fires_where_both_are_seen_in_one_step():
    assert see(series([4.0]), series([0.8])).numbers == {"zero_gradients": 0.8, "cut_off_segments": 4.0}


@pytest.mark.parametrize(("segments", "zero"), [([4.0], [0.0]), ([4.0], [0.0, 0.8])])
def test_stays_quiet_where_all_have_gradients_or_the_segments_were_of_another_step(segments, zero):
    assert see(series(segments), series(zero)) is None


torch = pytest.importorskip("torch")
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential  # noqa: E402

from finitune.diagnosis.recorded import diagnose  # noqa: E402
from finitune.monitor.watch import watch  # noqa: E402

COMPUTED = {
    "sequential": lambda layers, x: checkpoint_sequential(layers, 2, x, use_reentrant=True),
    "method": lambda layers, x: layers[1](checkpoint(layers[0].forward, x, use_reentrant=True)),
    "partial": lambda layers, x: layers[1](checkpoint(functools.partial(layers[0]), x, use_reentrant=True)),
    "not reentrant": lambda layers, x: checkpoint_sequential(layers, 2, x, use_reentrant=False),
    "input with a gradient": lambda layers, x: layers[1](checkpoint(layers[0], x.requires_grad_(), use_reentrant=True)),
    "frozen": lambda layers, x: layers[1](checkpoint(layers[0].requires_grad_(False), x, use_reentrant=True)),
    "not recorded": lambda layers, x: layers[1](torch.no_grad()(checkpoint)(layers[0], x, use_reentrant=True)),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", COMPUTED)
def test_segments_that_no_gradient_enters(tmp_path, name):
    found = name in ("sequential", "method", "partial")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    before = CheckpointFunction.apply
    with watch(layers, optimizer, run_dir=tmp_path / "run"):
        for _ in range(3):
            optimizer.zero_grad()
            COMPUTED[name](layers, torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    assert CheckpointFunction.apply == before
    assert "apply" not in vars(CheckpointFunction), "it is inherited again"
    incidents = diagnose(tmp_path / "run").incidents
    assert [(one.step, one.symptom) for one in incidents] == [(1, "checkpoint-without-gradient")] * found
    assert [one.causes[0].cause for one in incidents] == ["gradient-checkpointing"] * found


class Doubled(CheckpointFunction):
    """A class of the user's that runs a segment in its own way."""

    @staticmethod
    def forward(ctx, function, preserve, x):
        return 2 * CheckpointFunction.forward(ctx, function, preserve, x)


def test_a_class_that_is_made_of_it_runs_as_it_is_written(tmp_path):
    layer = torch.nn.Linear(4, 1)
    x = torch.ones(3, 4, requires_grad=True)
    alone = Doubled.apply(layer, True, x)
    with watch(layer, torch.optim.SGD(layer.parameters(), lr=0.01), run_dir=tmp_path / "run"):
        watched = Doubled.apply(layer, True, x)
    assert torch.equal(watched, alone)
    assert watched.grad_fn.name() == alone.grad_fn.name()
