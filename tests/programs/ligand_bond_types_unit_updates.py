"""
Relational message passing for ligand lipophilicity.

Every bond type has its own weights; each weight tensor moves by a fixed length per step
(direction of its gradient only), which makes one rate fit all types.
"""
from typing import List, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

ELEMENTS = 6
BONDS = ("order1", "order2", "order3", "aromatic")


class Mol(NamedTuple):
    z: Tensor
    src: Tensor
    dst: Tensor
    kind: Tensor
    y: float


class Batch(NamedTuple):
    z: Tensor
    src: Tensor
    dst: Tensor
    kind: Tensor
    mol: Tensor
    y: Tensor


def grow(rng, series) -> Mol:
    """A random tree with bond kinds as the series has them."""
    n = int(rng.integers(5, 14))
    z = rng.choice(ELEMENTS, n, p=[.6, .12, .12, .06, .05, .05])
    parent = np.array([rng.integers(0, i) for i in range(1, n)])
    child = np.arange(1, n)
    p = {"kinase": [.4, .2, .09, .31], "paraffin": [.85, .12, .03, .0]}[series]
    kind = rng.choice(4, n - 1, p=p)
    y = 0.25 * (z == 0).sum() - 0.5 * (z == 1).sum() - 0.4 * (z == 2).sum() + 0.15 * (kind == 3).sum()
    y += 0.05 * rng.normal()
    src, dst = np.concatenate([parent, child]), np.concatenate([child, parent])
    return Mol(*(torch.as_tensor(a) for a in (z, src, dst, np.concatenate([kind, kind]))), float(y))


def merge(mols: List[Mol]) -> Batch:
    sizes = torch.tensor([len(m.z) for m in mols])
    shift = torch.cumsum(sizes, 0) - sizes
    return Batch(
        torch.cat([m.z for m in mols]),
        torch.cat([m.src + s for m, s in zip(mols, shift)]),
        torch.cat([m.dst + s for m, s in zip(mols, shift)]),
        torch.cat([m.kind for m in mols]),
        torch.repeat_interleave(torch.arange(len(mols)), sizes),
        torch.tensor([m.y for m in mols]),
    )


def segment_sum(x: Tensor, index: Tensor, n: int) -> Tensor:
    return x.new_zeros(n, x.shape[1]).index_add_(0, index, x)


class BondLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.by_kind = nn.ModuleDict({k: nn.Linear(dim, dim, bias=False) for k in BONDS})
        self.self_loop = nn.Linear(dim, dim)

    def forward(self, h, b: Batch):
        out = self.self_loop(h)
        for i, name in enumerate(BONDS):
            pick = b.kind == i
            out = out + segment_sum(self.by_kind[name](h[b.src[pick]]), b.dst[pick], len(h))
        return torch.relu(out)


class LipoNet(nn.Module):
    def __init__(self, dim=32, layers=2):
        super().__init__()
        self.atom = nn.Embedding(ELEMENTS, dim)
        self.layers = nn.ModuleList(BondLayer(dim) for _ in range(layers))
        self.read = nn.Linear(dim, 1)

    def forward(self, b: Batch):
        h = self.atom(b.z)
        for layer in self.layers:
            h = h + 0.3 * layer(h, b)
        return self.read(segment_sum(h, b.mol, len(b.y)) * 0.2).squeeze(1)


class FixedLengthDescent(torch.optim.Optimizer):
    def __init__(self, params, length):
        super().__init__(params, dict(length=length))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                direction = p.grad / p.grad.norm()
                p.add_(direction, alpha=-group["length"])


def main():
    torch.manual_seed(8)
    rng = np.random.default_rng(8)
    # plates as they came from the assay: kinase series, with two plates of a side project in between
    plates = ["kinase"] * 45
    plates[21] = plates[33] = "paraffin"
    net = LipoNet()
    opt = FixedLengthDescent(net.parameters(), length=0.02)
    for step, series in enumerate(plates, 1):
        b = merge([grow(rng, series) for _ in range(16)])
        opt.zero_grad()
        error = net(b) - b.y
        loss = error.square().mean()
        loss.backward()
        opt.step()
        if step % 15 == 0:
            opt.param_groups[0]["length"] *= 0.5
        print(f"plate {step} mse {loss.item():.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    main()
