"""Levenberg-Marquardt for a two-substrate enzyme with Hill cooperativity, as a torch optimizer."""
import torch
from torch import nn
from torch.func import functional_call, jacfwd
from torch.optim import Optimizer

torch.set_default_dtype(torch.float64)


class Enzyme(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_vmax = nn.Parameter(torch.tensor(4.5))
        self.log_k = nn.Parameter(torch.tensor([3.0, -2.5]))
        self.log_hill = nn.Parameter(torch.tensor([-2.0, 1.5]))

    def forward(self, s):
        hill = self.log_hill.exp()
        ratio = s.pow(hill) / self.log_k.exp().pow(hill)
        return self.log_vmax.exp() * (ratio / (1 + ratio)).prod(-1)


class LevenbergMarquardt(Optimizer):
    """step(residuals): residuals maps a dict of parameters to a vector."""

    def __init__(self, named, damping=1e-7, up=8.0, down=0.25, tries=14):
        named = list(named)
        self.names = [n for n, _ in named]
        super().__init__([p for _, p in named], dict(damping=damping, up=up, down=down, tries=tries))
        self.rejected = 0

    def _unflatten(self, v):
        out, at = {}, 0
        for n, p in zip(self.names, self.param_groups[0]["params"]):
            out[n] = v[at:at + p.numel()].view_as(p)
            at += p.numel()
        return out

    @torch.no_grad()
    def step(self, closure):
        group = self.param_groups[0]
        x = torch.cat([p.reshape(-1) for p in group["params"]])
        f = lambda v: closure(self._unflatten(v))
        r, J = f(x), jacfwd(f)(x)
        grad, H = J.T @ r, J.T @ J
        for name, p in zip(self.names, group["params"]):
            p.grad = self._unflatten(grad)[name].clone()
        cost = r.square().sum()
        for _ in range(group["tries"]):
            delta = torch.linalg.solve(H + group["damping"] * torch.eye(len(x)), -grad)
            trial = f(x + delta).square().sum()
            if trial < cost:
                for name, p in zip(self.names, group["params"]):
                    p.copy_(self._unflatten(x + delta)[name])
                group["damping"] = max(group["damping"] * group["down"], 1e-12)
                return trial
            self.rejected += 1
            group["damping"] *= group["up"]
        return cost


def assay(gen, n=60):
    s = torch.rand(n, 2, generator=gen) * torch.tensor([40.0, 3.0]) + 0.05
    truth = Enzyme()
    with torch.no_grad():
        truth.log_vmax.fill_(1.6)
        truth.log_k.copy_(torch.tensor([2.1, -0.3]))
        truth.log_hill.copy_(torch.tensor([0.4, 0.1]))
        v = truth(s)
    return s, v + 0.03 * torch.randn(n, generator=gen)


def main():
    gen = torch.Generator().manual_seed(9)
    s, v = assay(gen)
    model = Enzyme()
    opt = LevenbergMarquardt(model.named_parameters())
    residuals = lambda params: functional_call(model, params, (s,)) - v
    for it in range(30):
        cost = opt.step(residuals)
        print(f"it {it + 1:2d} cost {cost.item():.6e} rejected so far {opt.rejected}", flush=True)
    print(f"sum of parameters {sum(p.sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
