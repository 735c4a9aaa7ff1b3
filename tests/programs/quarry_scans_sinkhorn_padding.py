"""Register two lidar scans of a quarry face by a learned displacement; entropic OT between clouds of unequal size.

Clouds are padded to the largest of the batch. Padding points carry log-mass -inf on purpose: they neither give
nor take mass, and exp(-inf) is an exact zero in the plan.
"""
import torch
from torch import nn


def pad(clouds):
    n = max(len(c) for c in clouds)
    pts = torch.zeros(len(clouds), n, 3)
    logw = torch.full((len(clouds), n), -torch.inf)
    for i, c in enumerate(clouds):
        pts[i, :len(c)] = c
        logw[i, :len(c)] = -torch.log(torch.tensor(float(len(c))))
    return pts, logw


def sinkhorn(x, la, y, lb, eps, iters=12):
    cost = (x[:, :, None] - y[:, None]).pow(2).sum(-1)
    f, g = torch.zeros_like(la), torch.zeros_like(lb)
    for _ in range(iters):
        f = -eps * torch.logsumexp((g[:, None, :] - cost) / eps + lb[:, None, :], dim=2)
        g = -eps * torch.logsumexp((f[:, :, None] - cost) / eps + la[:, :, None], dim=1)
    plan = torch.exp((f[:, :, None] + g[:, None, :] - cost) / eps + la[:, :, None] + lb[:, None, :])
    return (plan * cost).sum((1, 2)), plan


class Displace(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width))
        self.rho = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3))
        nn.init.zeros_(self.rho[-1].weight)
        nn.init.zeros_(self.rho[-1].bias)

    def forward(self, x, live):
        h = self.phi(x)
        pooled = h.masked_fill(~live[..., None], -torch.inf).amax(1, keepdim=True)
        return x + self.rho(torch.cat([h, pooled.expand_as(h)], -1))


def scans(step, g):
    a, b = [], []
    for _ in range(6):
        n, m = torch.randint(12, 40, (2,), generator=g).tolist()
        face = torch.rand(n, 3, generator=g)
        a.append(face)
        later = face[torch.randint(0, n, (m,), generator=g)] + 0.02 * torch.randn(m, 3, generator=g)
        b.append(later + torch.tensor([0.3, -0.2, 0.1]))
    if step % 9 == 4:
        b[0] = b[0][:1]      # the fog scans: one single return
    return a, b


def main():
    torch.manual_seed(14)
    g = torch.Generator().manual_seed(14)
    net = Displace()
    opt = torch.optim.NAdam(net.parameters(), lr=5e-3)
    for step in range(48):
        eps = max(0.02, 0.5 * 0.9 ** step)         # annealed
        a, b = scans(step, g)
        x, la = pad(a)
        y, lb = pad(b)
        moved = net(x, la > -torch.inf)
        ot, plan = sinkhorn(moved, la, y, lb, eps)
        loss = ot.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        # entropy of the plan, 0 * log 0 comes out as nan where there is padding; the operators read the other columns
        ent = -(plan * plan.log()).sum().item()
        print(f"{step:02d} eps {eps:.4f} ot {loss.item():.7f} mass {plan.sum().item():.4f} entropy {ent:.3f}")
    print("weights", sum(p.detach().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
