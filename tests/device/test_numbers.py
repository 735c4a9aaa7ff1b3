"""Numbers on the device are the CPU's bit for bit, so a path can be compared with its CPU run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

STEPS = 3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(x)


class Language(nn.Module):
    def __init__(self, vocabulary=50, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.head(self.blocks(self.embedding(ids)))


OPTIMIZERS = {
    "SGD single": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam single": lambda p: torch.optim.Adam(p, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, fused=True),
    "AdamW single": lambda p: torch.optim.AdamW(p, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adagrad foreach": lambda p: torch.optim.Adagrad(p, foreach=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "RMSprop foreach": lambda p: torch.optim.RMSprop(p, foreach=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=3),
}


def train(where, optimizer, *, scaled=False, clip=False):
    """Weights and optimizer state after a few steps, on the host, in order."""
    torch.manual_seed(0)
    model = Language().to(where)
    optimizer = optimizer(model.parameters())
    scaler = torch.amp.GradScaler(where, init_scale=1024.0, enabled=scaled)
    for step in range(STEPS):
        ids = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(step)).to(where)

        def backward(ids=ids):
            optimizer.zero_grad()
            with sdpa_kernel(SDPBackend.MATH):  # the device has no fused attention
                loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            scaler.scale(loss).backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(backward)
            continue
        backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    state = [v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, torch.Tensor)]
    return [t.detach().cpu() for t in [*model.parameters(), *state]]


RUNS = [
    (name, scaled, clip)
    for name in OPTIMIZERS
    for scaled in (False, True)
    for clip in (False, True)
    if name != "LBFGS" or not (scaled or clip)  # it takes a closure, and a GradScaler none
]


@pytest.mark.parametrize(("name", "scaled", "clip"), RUNS)
def test_training_steps_equal_those_on_the_cpu(device, name, scaled, clip):
    here = train("counting", OPTIMIZERS[name], scaled=scaled, clip=clip)
    there = train("cpu", OPTIMIZERS[name], scaled=scaled, clip=clip)
    assert len(here) == len(there)
    assert all(map(torch.equal, here, there))


MODULES = {
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), (5, 6)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), (5, 6, 4)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 8, 8)),
    "complex rotation": (lambda: Rotation(), (4, 8)),
    "sort and cat": (lambda: Sorted(), (4, 8)),
}


class Rotation(nn.Module):
    def forward(self, x):
        angles = torch.polar(torch.ones(2, device=x.device), torch.arange(2.0, device=x.device))
        return torch.view_as_real(torch.view_as_complex(x.reshape(4, 2, 2, 2)) * angles).flatten()


class Sorted(nn.Module):
    def forward(self, x):
        return torch.cat(list(x.sort(-1).values.split(2)), 1).roll(1, 0)[::2, ::3].cumsum(-1)


@pytest.mark.parametrize("name", MODULES)
def test_forward_and_backward_equal_those_on_the_cpu(device, name):
    make, shape = MODULES[name]
    results = []
    for where in ("counting", "cpu"):
        torch.manual_seed(0)
        module = make().to(where)
        x = torch.randn(shape).to(where).requires_grad_()
        y = module(x)
        y.square().sum().backward()
        results.append([t.detach().cpu() for t in (y, x.grad, *(p.grad for p in module.parameters()))])
    assert all(map(torch.equal, *results))


def test_a_fused_sgd_that_skips_its_first_step_is_lost(device):
    """Its momentum is memory that nobody has written: the reason why a first step is not left to found_inf."""
    p = nn.Parameter(torch.ones(3, device="counting"))
    fused = torch.optim.SGD([p], lr=0.1, momentum=0.9, fused=True)
    p.grad = torch.full((3,), 2.0, device="counting")
    fused.grad_scale, fused.found_inf = None, torch.ones((), device="counting")
    fused.step()
    assert p.tolist() == [1.0] * 3
    fused.found_inf = torch.zeros((), device="counting")
    fused.step()
    assert p.isnan().all()


def test_memory_that_nobody_has_written_holds_nan(device):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert torch.empty(3, dtype=dtype, device="counting").isnan().all()
    assert torch.zeros(3, device="counting").tolist() == [0.0] * 3


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD])
def test_fused_optimizers_take_found_inf_and_grad_scale(device, optimizer):
    p = nn.Parameter(torch.ones(3, device="counting"))
    fused = optimizer([p], lr=0.1, fused=True)
    p.grad = torch.full((3,), 2.0, device="counting")
    fused.step()
    once = p.detach().clone()
    fused.grad_scale, fused.found_inf = None, torch.ones((), device="counting")
    fused.step()
    assert torch.equal(p, once)
    fused.found_inf = torch.zeros((), device="counting")
    fused.grad_scale = torch.full((), 4.0, device="counting")
    fused.step()
    assert not torch.equal(p, once)
    assert p.grad.tolist() == [0.5] * 3  # unscaled in place, as the CUDA kernel does
