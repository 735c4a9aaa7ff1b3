"""Fit a union of spheres (smooth minimum) to an oriented point cloud for grasp planning.

The surface normals of the implicit function come from torch.func, one gradient for each point.
"""
import math
from types import SimpleNamespace

import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

cfg = SimpleNamespace(points=600, batch=48, spheres=8, steps=60, refresh=24, lr_centre=0.02, lr_radius=0.01,
                      w_normal=0.2, w_eikonal=0.05, seed=8)


class SphereUnion(nn.Module):
    def __init__(self, k, sharpness=12.0):
        super().__init__()
        self.centres = nn.Parameter(0.3 * torch.randn(k, 3))
        self.log_radii = nn.Parameter(torch.full((k,), math.log(0.3)))
        self.sharpness = sharpness

    def distances(self, x):
        offset = x - self.centres
        return torch.sqrt((offset * offset).sum(-1)) - self.log_radii.exp()

    def forward(self, x):
        return -torch.logsumexp(-self.sharpness * self.distances(x), 0) / self.sharpness


def bottle(n, g):
    """Surface samples of a capsule with their outward normals."""
    axis = torch.rand(n, generator=g) * 1.2 - 0.6
    normal = torch.randn(n, 3, generator=g)
    normal[:, 2] *= (axis.abs() > 0.55).float()
    normal = normal / normal.norm(dim=1, keepdim=True)
    points = 0.35 * normal
    points[:, 2] += axis
    return points, normal


def build_losses(model, cfg):
    def sdf(params, x):
        return functional_call(model, params, (x,))

    values = vmap(sdf, in_dims=(None, 0))
    normals = vmap(grad(sdf, argnums=1), in_dims=(None, 0))

    def losses(params, points, target):
        n = normals(params, points)
        length = n.norm(dim=1)
        return {
            "surface": values(params, points).abs().mean(),
            "normal": cfg.w_normal * (1 - (n * target).sum(1)).mean(),
            "eikonal": cfg.w_eikonal * ((length - 1) ** 2).mean(),
        }

    return losses


@torch.no_grad()
def reseed_idle_sphere(model, points):
    """Put the sphere that explains the fewest points where the fit is worst."""
    signed = torch.stack([model.distances(p) for p in points])
    idle = signed.argmin(1).bincount(minlength=len(model.centres)).argmin()
    worst = signed.amin(1).abs().argmax()
    model.centres[idle] = points[worst]
    model.log_radii[idle] = math.log(0.1)


def fit(cfg):
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    cloud, normal = bottle(cfg.points, g)
    model = SphereUnion(cfg.spheres)
    optimizers = [torch.optim.Adam([model.centres], lr=cfg.lr_centre),
                  torch.optim.SGD([model.log_radii], lr=cfg.lr_radius, momentum=0.8)]
    losses = build_losses(model, cfg)
    for step in range(1, cfg.steps + 1):
        rows = torch.randint(0, cfg.points, (cfg.batch,), generator=g)
        points = cloud[rows]
        if step % cfg.refresh == 0:
            reseed_idle_sphere(model, points)
        parts = losses(dict(model.named_parameters()), points, normal[rows])
        total = sum(parts.values())
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()
        for optimizer in optimizers:
            optimizer.step()
        print(f"step {step} total {total.item():.5f} " + " ".join(f"{k} {v.item():.5f}" for k, v in parts.items()))
    return model


if __name__ == "__main__":
    fitted = fit(cfg)
    print("finite", int(all(p.isfinite().all() for p in fitted.parameters())))
