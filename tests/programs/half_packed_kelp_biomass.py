"""Kelp biomass from drone strips; saved activations are parked in half precision.

`HalfPark` is a pair of saved-tensor hooks: what autograd keeps for the backward is
stored as float16 in host memory and widened again when it is needed.  It halved the
memory of the big run.
"""
import contextlib

import torch
import torch.nn as nn
from torch.autograd.graph import saved_tensors_hooks

torch.manual_seed(404)
torch.set_num_threads(1)


class HalfPark(contextlib.AbstractContextManager):
    def __init__(self, smallest=64):
        self.smallest = smallest
        self.bytes_saved = 0
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, t):
        if t.dtype is not torch.float32 or t.numel() < self.smallest or isinstance(t, nn.Parameter) or not t.is_contiguous():
            return t
        self.bytes_saved += t.numel() * 2
        return t.device, t.to(torch.float16)

    def _unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        device, small = packed
        return small.to(device).float()

    def __enter__(self):
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc):
        return self._hooks.__exit__(*exc)


class KelpNet(nn.Module):
    """Bands -> canopy features -> wet mass per square metre, plus an allometric term."""

    def __init__(self):
        super().__init__()
        self.bands = nn.Linear(6, 24)
        self.canopy = nn.Linear(24, 24)
        self.mass = nn.Linear(24, 1)
        self.allometry = nn.Parameter(torch.tensor([2e-5, 1e-5]))

    def forward(self, bands, length_cm):
        h = torch.tanh(self.canopy(torch.relu(self.bands(bands))))
        local = self.mass(h).squeeze(-1)
        square = length_cm * length_cm          # length-weight relation of the frond
        return local + self.allometry[0] * square + self.allometry[1] * length_cm


def strips(n_strips, per_strip=64):
    g = torch.Generator().manual_seed(9)
    mix = torch.randn(6, generator=g)
    for k in range(n_strips):
        bands = torch.rand(per_strip, 6, generator=g)
        frond = 40 + 120 * torch.rand(per_strip, generator=g)
        if k % 7 == 3:
            frond[::5] += 70                       # sheltered bay, long fronds
        if k == 21:
            frond[17] = 283.0                      # giant kelp at the outer reef
        wet = bands @ mix + 3e-5 * frond.square() + 0.05 * torch.randn(per_strip, generator=g)
        yield k, bands, frond, wet


net = KelpNet()
groups = [{"params": [p for n, p in net.named_parameters() if n != "allometry"], "lr": 4e-3},
          {"params": [net.allometry], "lr": 1e-7}]
opt = torch.optim.Adam(groups, eps=1e-10)
parked = 0
for k, bands, frond, wet in strips(36):
    with HalfPark() as park:
        loss = (net(bands, frond) - wet).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    parked += park.bytes_saved
    print(f"strip {k + 1:2d}  mse {loss.item():.6f}  allometry {net.allometry[0].item():.4e}")

print(f"parked {parked / 1024:.1f} KiB less than usual")
print(f"sum of weights {sum(p.double().sum().item() for p in net.parameters()):.6f}")
