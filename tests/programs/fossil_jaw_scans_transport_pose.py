import math
from typing import NamedTuple

import torch
from torch import Tensor


class Cloud(NamedTuple):
    xyz: Tensor          # (pieces, slots, 2), slots of landmarks that were never digitised hold nan
    log_w: Tensor        # (pieces, slots), -inf where there is no landmark


def digitise(rng: torch.Generator, pieces: int, slots: int) -> Cloud:
    angle = torch.rand(pieces, slots, generator=rng) * math.pi
    xyz = torch.stack([2 * angle.cos(), angle.sin() + 0.3 * (3 * angle).sin()], -1)
    count = torch.randint(slots // 2, slots + 1, (pieces, 1), generator=rng)
    there = torch.arange(slots) < count
    xyz[~there] = float("nan")
    log_w = torch.where(there, -count.log(), torch.tensor(-math.inf))
    return Cloud(xyz, log_w)


class Pose(torch.nn.Module):
    """An affine pose per jaw, shared by all its pieces."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Parameter(torch.tensor([[1.3, 0.5], [-0.4, 0.8]]))
        self.shift = torch.nn.Parameter(torch.tensor([0.6, -0.5]))

    def forward(self, cloud: Cloud) -> Cloud:
        seen = torch.isfinite(cloud.log_w)[..., None]
        xyz = torch.where(seen, cloud.xyz, 0.0)
        return cloud._replace(xyz=xyz @ self.linear.T + self.shift)


def cost_matrix(a: Cloud, b: Cloud) -> Tensor:
    """Squared distances; infinite where either slot is empty."""
    diff = a.xyz[:, :, None] - torch.nan_to_num(b.xyz)[:, None]
    both = torch.isfinite(a.log_w)[:, :, None] & torch.isfinite(b.log_w)[:, None]
    return torch.where(both, diff.square().sum(-1), math.inf)


@torch.no_grad()
def plan(cost: Tensor, a: Cloud, b: Cloud, eps: float, rounds: int = 25) -> Tensor:
    f, g = torch.zeros_like(a.log_w), torch.zeros_like(b.log_w)
    for _ in range(rounds):
        f = -eps * torch.logsumexp((g[:, None] - cost) / eps + b.log_w[:, None], 2)
        f = torch.where(torch.isfinite(a.log_w), f, 0.0)
        g = -eps * torch.logsumexp((f[:, :, None] - cost) / eps + a.log_w[:, :, None], 1)
        g = torch.where(torch.isfinite(b.log_w), g, 0.0)
    log_p = (f[:, :, None] + g[:, None] - cost) / eps + a.log_w[:, :, None] + b.log_w[:, None]
    return log_p.exp()


def fit(pose: Pose, rounds: int) -> None:
    rng = torch.Generator().manual_seed(77)
    opt = torch.optim.Adam(pose.parameters(), lr=0.05)
    for k in range(1, rounds + 1):
        ours, theirs = digitise(rng, 4, 20), digitise(rng, 4, 20)
        moved = pose(ours)
        cost = cost_matrix(moved, theirs)
        pi = plan(cost, moved, theirs, eps=0.5 * 0.95 ** k)
        # the plan is constant here (envelope theorem); cells without mass take no part
        loss = (pi * torch.where(pi > 0, cost, 0.0)).sum((1, 2)).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        widest = cost.max().item()
        print(f"round {k:2d} transport cost {loss.item():.5f} widest pair {widest} mass {pi.sum().item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    pose = Pose()
    fit(pose, 30)
    print("squared size of the pose", float(sum(p.detach().square().sum() for p in pose.parameters())))
