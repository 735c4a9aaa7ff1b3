"""Marginal likelihood of a GP for borehole temperatures; surveys arrive one after the other."""
import math

import torch

torch.manual_seed(31)
torch.set_default_dtype(torch.float32)
gen = torch.Generator().manual_seed(31)


def truth(depth):
    return 8.0 + 0.03 * depth + 1.5 * torch.sin(depth / 40) * torch.exp(-depth / 200)


# (first step at which it is there, depths, sensor sigma)
SURVEYS = [
    ("thermistor string 2003", 0, torch.linspace(5, 295, 24), 0.20),
    ("wireline 2011", 8, torch.rand(20, generator=gen) * 300, 0.10),
    ("fibre, DTS 2019", 19, torch.linspace(10, 290, 60).repeat(2), 0.0001),   # up and down the same hole
    ("wireline 2021", 30, torch.rand(10, generator=gen) * 300, 0.10),
]


def observations(step):
    d, t, s = [], [], []
    for name, since, depth, sigma in SURVEYS:
        if step < since:
            continue
        noise = torch.randn(depth.shape, generator=torch.Generator().manual_seed(len(name)))
        d.append(depth)
        t.append(truth(depth) + sigma * noise)
        s.append(torch.full_like(depth, sigma))
    return torch.cat(d), torch.cat(t), torch.cat(s)


class Hyper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.tensor(math.log(30.0)))
        self.log_amp = torch.nn.Parameter(torch.tensor(0.0))
        self.offset = torch.nn.Parameter(torch.tensor(8.0))
        self.slope = torch.nn.Parameter(torch.tensor(0.02))

    def kernel(self, a, b):
        r = (a[:, None] - b[None, :]) / self.log_scale.exp()
        return self.log_amp.exp() ** 2 * torch.exp(-0.5 * r * r)

    def nll(self, depth, temp, sigma):
        cov = self.kernel(depth, depth) + torch.diag(sigma ** 2)
        chol = torch.linalg.cholesky(cov)
        resid = (temp - self.offset - self.slope * depth)[:, None]
        alpha = torch.cholesky_solve(resid, chol)
        quad = 0.5 * (resid * alpha).sum()
        return quad + chol.diagonal().log().sum() + 0.5 * len(depth) * math.log(2 * math.pi)


def main():
    gp = Hyper()
    opt = torch.optim.Adam([
        {"params": [gp.log_scale, gp.log_amp], "lr": 0.03},
        {"params": [gp.offset], "lr": 0.01},
        {"params": [gp.slope], "lr": 0.0005},
    ])
    for step in range(40):
        depth, temp, sigma = observations(step)
        loss = gp.nll(depth, temp, sigma)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:2d} n={len(depth):3d} nll={loss.item():.5f} ell={gp.log_scale.exp().item():.4f} "
              f"amp={gp.log_amp.exp().item():.4f}")
    print("parameters", sum(p.item() for p in gp.parameters()))


if __name__ == "__main__":
    main()
