"""Noise floor of diffusion tensors, learnt from the directions of known fibre bundles."""
import argparse
import sys

import torch
from torch import nn


class NoiseFloor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1))

    def forward(self, tensors):
        diagonal = torch.diagonal(tensors, dim1=-2, dim2=-1)
        floor = nn.functional.softplus(self.body(diagonal) - 3.0)
        return tensors - floor[..., None] * torch.eye(3)


def bundle(n, g):
    axis = nn.functional.normalize(torch.randn(n, 3, generator=g), dim=1)
    outer = axis[:, :, None] * axis[:, None, :]
    noise = torch.randn(n, 3, 3, generator=g) * 0.03
    tensors = 0.7 * torch.eye(3) + 1.2 * outer + noise + noise.mT
    return tensors, axis


def atlas(n, seed):
    g = torch.Generator().manual_seed(seed)
    tensors, axis = bundle(n, g)
    tensors[n // 2] = 3.0 * torch.eye(3)        # a voxel of the ventricle
    share = torch.full((n,), 0.75)
    return tensors, axis, share


def anisotropy(values):
    spread = ((values - values.mean(-1, keepdim=True)) ** 2).sum(-1)
    return 1.5 * spread / (values ** 2).sum(-1)


def objective(model, tensors, axis, share):
    values, vectors = torch.linalg.eigh(model(tensors))
    principal = vectors[..., -1]
    misfit = 1 - (principal * axis).sum(-1) ** 2
    return (misfit + (anisotropy(values) - share) ** 2).mean()


def main(argv):
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--voxels", type=int, default=64)
    ap.add_argument("--slab", type=int, default=8)
    ap.add_argument("--sweeps", type=int, default=3)
    ap.add_argument("--seed", type=int, default=9)
    o = ap.parse_args(argv)
    torch.manual_seed(o.seed)
    tensors, axis, share = atlas(o.voxels, o.seed)
    model = NoiseFloor(8)
    opt = torch.optim.Adamax(model.parameters(), lr=5e-3)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=6)
    step = 0
    for sweep in range(o.sweeps):
        for start in range(0, o.voxels, o.slab):
            part = slice(start, start + o.slab)
            step += 1
            opt.zero_grad()
            loss = objective(model, tensors[part], axis[part], share[part])
            loss.backward()
            opt.step()
            warm.step()
            print(f"sweep={sweep} step={step} loss={loss.item():.10f}")
    print(torch.cat([p.flatten() for p in model.parameters()]).sum().item())


if __name__ == "__main__":
    main(sys.argv[1:])
