"""Unscented filter for a raft that is ranged from two beacons; noise levels are learned by maximum likelihood."""
import torch
from torch import nn

DT, N = 1.0, 6
BEACONS = torch.tensor([[0.0, 0.0], [30.0, 0.0]])


HOURS_SINCE_FIX = [4, 6, 3, 8, 5, 5, 2, 7, 4, 9, 6, 3, 5, 4, 8, 6, 7, 3, 5, 4, 96, 5, 6, 8, 3]


def sail(seed, offset):
    g = torch.Generator().manual_seed(seed)
    s = torch.tensor([-20.0, offset, 1.5, 0.0])
    ranges = []
    for _ in range(24):
        s = s.clone()
        s[2:] += 0.03 * torch.randn(2, generator=g)
        s[:2] += DT * s[2:]
        ranges.append((s[:2] - BEACONS).norm(dim=1) + 0.1 * torch.randn(2, generator=g))
    return torch.stack(ranges)


class RaftFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_q = nn.Parameter(torch.tensor([-2.0, -3.0, -4.0]))
        self.log_r = nn.Parameter(torch.tensor(0.0))
        kappa = 3.0 - N
        w = torch.full((2 * N + 1,), 0.5 / (N + kappa))
        w[0] = kappa / (N + kappa)
        self.register_buffer("w", w)
        self.reach = (N + kappa) ** 0.5

    def cloud(self, m, cov):
        root = torch.linalg.cholesky(cov).T * self.reach
        return torch.cat([m[None], m + root, m - root])

    def moments(self, pts):
        m = self.w @ pts
        d = pts - m
        return m, d, (self.w[:, None] * d).T @ d

    def forward(self, ranges, start, doubt):
        q = torch.diag(self.log_q.exp().repeat_interleave(2))
        r = torch.eye(2) * self.log_r.exp()
        m, cov = start, torch.diag(torch.tensor([doubt, doubt, 1.0, 1.0, 0.1, 0.1]) ** 2)
        total = 0.0
        for z in ranges:
            pts = self.cloud(m, cov)
            pts = torch.cat([pts[:, :2] + DT * pts[:, 2:4], pts[:, 2:4] + DT * pts[:, 4:], pts[:, 4:]], 1)
            m, d, cov = self.moments(pts)
            cov = cov + q
            pts = self.cloud(m, cov)
            d = pts - m
            seen = (pts[:, None, :2] - BEACONS).norm(dim=-1)
            zm, e, s = self.moments(seen)
            s = s + r
            gain = torch.linalg.solve(s, ((self.w[:, None] * d).T @ e).T).T
            miss = z - zm
            total = total + 0.5 * (miss @ torch.linalg.solve(s, miss) + torch.logdet(s))
            m, cov = m + gain @ miss, cov - gain @ s @ gain.T
        return total / len(ranges)


def main():
    torch.manual_seed(1)
    model = RaftFilter()
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    offsets = [25.0 + 0.2 * k for k in range(36)]     # every voyage passes a little farther out
    for voyage, offset in enumerate(offsets, 1):
        start = torch.tensor([-20.0, offset, 1.5, 0.0, 0.0, 0.0])
        hours = HOURS_SINCE_FIX[voyage % len(HOURS_SINCE_FIX)]
        nll = model(sail(voyage, offset), start, 0.4 * hours ** 2)
        opt.zero_grad()
        nll.backward()
        opt.step()
        print(f"voyage {voyage:2d} fix {hours} h old nll {nll.item():.5f} r {model.log_r.exp().item():.4f}")
    print("sum of squares", sum(p.square().sum().item() for p in model.parameters()))


main()
