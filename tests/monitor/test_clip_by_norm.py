"""What clipping measures of each gradient is what the guard judges; nothing is read twice."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import clip_grad_norm_  # noqa: E402

from finitune.monitor.probes import finite, measurement  # noqa: E402
from finitune.monitor.watch import watch  # noqa: E402
from finitune.recording import Recording  # noqa: E402


def model_of(*dtypes):
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(4, 4).to(dtype) for dtype in dtypes])


def trained(model, run_dir, *, value=1.0, bad=2, **clipping):
    """Three steps; the gradient of the last weight is multiplied by `value` in step `bad`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    step = 0
    model[-1].weight.register_hook(lambda g: g * value if step == bad else g)
    with watch(model, optimizer, run_dir=run_dir):
        for step in (1, 2, 3):  # noqa: B007
            x = torch.randn(3, 4)
            for layer in model:
                x = layer(x.to(layer.weight.dtype))
            x.float().square().mean().backward()
            clip_grad_norm_(model.parameters(), 0.1, **clipping)
            optimizer.step()
            optimizer.zero_grad()
    return Recording.load(run_dir)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_bad_gradient_is_named_by_the_norms_of_clipping(tmp_path, monkeypatch, dtype, value):
    def never(_tensors):
        raise AssertionError("gradients were read again")

    monkeypatch.setattr(measurement, "norms", never)
    recording = trained(model_of(dtype, dtype), tmp_path / "run", value=value)
    assert recording.signals["skipped"].values.tolist() == [0, 1, 0]
    (incident,) = recording.events("incident")
    assert incident["bad"] == ["1.weight"]
    assert not recording.events("broken")


@pytest.mark.parametrize(
    ("dtypes", "clipping"),
    [
        ((torch.float32, torch.float16), {}),  # a norm in float16 overflows beyond 65504
        ((torch.float32, torch.float32), {"foreach": False}),
        ((torch.float32, torch.float32), {"norm_type": float("inf")}),
    ],
)
def test_norms_that_clipping_does_not_have_are_measured(tmp_path, monkeypatch, dtypes, clipping):
    read = []
    monkeypatch.setattr(measurement, "norms", lambda tensors: read.append(1) or finite.norms(tensors))
    recording = trained(model_of(*dtypes), tmp_path / "run", value=float("nan"), **clipping)
    assert len(read) == 3
    (incident,) = recording.events("incident")
    assert incident["bad"] == ["1.weight"]


def test_torch_is_put_back(tmp_path):
    before = torch._foreach_norm
    trained(model_of(torch.float32), tmp_path / "run")
    assert torch._foreach_norm is before
