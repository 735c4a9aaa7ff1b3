"""An optimizer that wraps another, keeps the gradients of the step, and does more with them after it."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


class Aligned(torch.optim.Optimizer):
    """Takes back a part of each update, by how the gradient lies to the ones before."""

    def __init__(self, optimizer):
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self._patch_step_function()
        self.optimizer, self.kept, self.defaults = optimizer, {}, optimizer.defaults

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state

    @torch.no_grad()
    def step(self, closure=None):
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [(p, p.clone(), p.grad.clone()) for p in trained]
        self.optimizer.step(closure)
        for p, weight, gradient in before:
            kept = self.kept.setdefault(p, torch.zeros_like(p))
            kept.lerp_(gradient, 0.1)
            p.lerp_(weight, 1 - torch.sigmoid(nn.functional.cosine_similarity(kept.flatten(), gradient.flatten(), 0)))


def trained(run_dir=None, bad: float | None = None, dtype=torch.float32, inner=torch.optim.AdamW):
    torch.manual_seed(0)
    model = nn.Linear(4, 2, dtype=dtype)
    optimizer = Aligned(inner(model.parameters(), lr=1e-2))
    with nullcontext() if run_dir is None else watch(model, optimizer, run_dir=run_dir):
        for step in range(1, 8):
            x = torch.randn(3, 4, dtype=dtype)
            if step == BAD and bad is not None:
                x[1, 2] = bad
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_a_healthy_run_is_bit_identical(tmp_path):
    assert all(map(torch.equal, trained(), trained(tmp_path / "run")))
    assert not Recording.load(tmp_path / "run").events("incident", "broken")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("inner", [torch.optim.AdamW, torch.optim.SGD])
def test_a_bad_gradient_reaches_neither_of_them(tmp_path, bad, dtype, inner):
    weights = trained(tmp_path / "run", bad, dtype, inner)
    assert all(one.isfinite().all() for one in weights)
    events = Recording.load(tmp_path / "run").events("incident")
    assert [(one["step"], one["action"]) for one in events] == [(BAD, "skipped-step")]
