"""Attitudes of a small constellation (unit quaternions) and the boresight of the
common star tracker, from star directions in the body frame."""
import math
import torch
from torch.optim import Optimizer

g = torch.Generator().manual_seed(1957)


def rotate(q, v):
    w, u = q[..., :1], q[..., 1:]
    t = 2 * torch.linalg.cross(u, v)
    return v + w * t + torch.linalg.cross(u, t)


class GeodesicDescent(Optimizer):
    """Walks along great circles; rows of every parameter lie on a sphere."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                tangent = p.grad - (p.grad * p).sum(-1, keepdim=True) * p
                length = tangent.norm(dim=-1, keepdim=True)
                angle = group["lr"] * length
                p.mul_(torch.cos(angle)).sub_(torch.sin(angle) * (tangent / length))


class Constellation(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        q = torch.randn(n, 4, generator=g)
        self.attitude = torch.nn.Parameter(q / q.norm(dim=1, keepdim=True))
        self.boresight = torch.nn.Parameter(torch.tensor([0.1, -0.2, 0.3]))

    def forward(self, which, stars):
        return rotate(self.attitude[which], stars) + self.boresight


def orbit_pass(q_true, offset, k, n_obs=48):
    """Stars seen during pass k.  A satellite in the earth's shadow sees none."""
    n = len(q_true)
    shadow = {15: 4, 27: 1}.get(k)
    candidates = torch.tensor([i for i in range(n) if i != shadow])
    which = candidates[torch.arange(n_obs) % len(candidates)]
    stars = torch.randn(n_obs, 3, generator=g)
    stars = stars / stars.norm(dim=1, keepdim=True)
    seen = rotate(q_true[which], stars) + offset + 0.004 * torch.randn(n_obs, 3, generator=g)
    return which, stars, seen


N = 6
truth = torch.randn(N, 4, generator=g)
truth = truth / truth.norm(dim=1, keepdim=True)
offset = torch.tensor([0.02, 0.01, -0.03])
model = Constellation(N)
on_sphere = GeodesicDescent([model.attitude], lr=0.5)
flat = torch.optim.SGD([model.boresight], lr=0.3, momentum=0.5)

for k in range(1, 36):
    which, stars, seen = orbit_pass(truth, offset, k)
    loss = (model(which, stars) - seen).square().sum(-1).mean()
    on_sphere.zero_grad()
    flat.zero_grad()
    loss.backward()
    on_sphere.step()
    flat.step()
    arcsec = math.degrees(math.sqrt(loss.item())) * 3600
    print(f"pass {k:02d}  mean square {loss.item():.6f}  ({arcsec:.0f} arcsec)")

print("sum over all parameters, squared: %.6f" % sum((p ** 2).sum().item() for p in model.parameters()))
