"""Clipping by value makes an infinite gradient finite before the optimizer sees it; the guard looks before it does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import clip_grad, clip_grad_value_  # noqa: E402

from finitune.monitor.watch import watch  # noqa: E402
from finitune.recording import Recording  # noqa: E402


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_gradient_that_clipping_makes_finite_is_still_discarded(tmp_path, value, foreach):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    model.weight.register_hook(lambda g: g * value if step == 3 else g)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            before = model.weight.detach().clone()
            model(torch.randn(3, 4)).square().sum().backward()
            clip_grad_value_(model.parameters(), 0.5, foreach=foreach)
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(before, model.weight) == (step == 3)
    recording = Recording.load(tmp_path / "run")
    assert recording.signals["skipped"].values.tolist() == [0, 0, 1, 0, 0]
    (incident,) = recording.events("incident")
    assert incident["bad"] == ["weight"]
    assert incident["clipped_by_value"]
    assert not recording.events("broken")


def test_the_norm_before_clipping_is_recorded(tmp_path):
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        (100 * model(torch.ones(1, 1))).sum().backward()
        clip_grad_value_(model.parameters(), 0.5)
        assert float(model.weight.grad) == 0.5
        optimizer.step()
    assert Recording.load(tmp_path / "run").signals["grad_norm"].values.tolist() == [100.0]


def test_torch_is_put_back(tmp_path):
    before = clip_grad._group_tensors_by_device_and_dtype
    model = nn.Linear(1, 1)
    with watch(model, torch.optim.SGD(model.parameters(), lr=1e-2), run_dir=tmp_path / "run"):
        assert clip_grad._group_tensors_by_device_and_dtype is not before
    assert clip_grad._group_tensors_by_device_and_dtype is before
