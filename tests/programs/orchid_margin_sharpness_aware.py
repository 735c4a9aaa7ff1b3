import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(19)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation around a plain momentum update (Foret et al. 2021)."""

    def __init__(self, params, lr=0.05, rho=0.05, momentum=0.9, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, rho=rho, momentum=momentum, weight_decay=weight_decay))

    def _grads(self):
        return [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([g.norm() for g in self._grads()]).norm()
        for group in self.param_groups:
            scale = group["rho"] / norm
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["home"] = p.clone()
                p.add_(p.grad * scale)

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                p.copy_(st.pop("home"))
                d = p.grad + group["weight_decay"] * p
                if "velocity" not in st:
                    st["velocity"] = torch.zeros_like(p)
                st["velocity"].mul_(group["momentum"]).add_(d)
                p.add_(st["velocity"], alpha=-group["lr"])

    def step(self, closure):
        self.climb()
        self.zero_grad()
        with torch.enable_grad():
            closure().backward()
        self.descend()


def greenhouse(n=600, kinds=4):
    """Petal and lip measures of orchids; a few of the specimens are mislabelled or hybrids."""
    centres = torch.randn(kinds, 10) * 2.2
    y = torch.randint(0, kinds, (n,))
    x = centres[y] + 0.8 * torch.randn(n, 10)
    hybrids = torch.rand(n) < 0.16
    other = (y + torch.randint(1, kinds, (n,))) % kinds
    x[hybrids] = 0.5 * (centres[y] + centres[other])[hybrids] + 0.4 * torch.randn(int(hybrids.sum()), 10)
    return x, y


class Key(nn.Module):
    def __init__(self, kinds=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 24), nn.Tanh())
        self.out = nn.Linear(24, kinds)

    def forward(self, x):
        return self.out(self.trunk(x))


def margin_loss(scores, y):
    return F.multi_margin_loss(scores, y, margin=1.0)


def main(steps=60, batch=16):
    x, y = greenhouse()
    mean, std = x.mean(0), x.std(0)
    x = (x - mean) / std
    net = Key()
    opt = SAM(net.parameters(), lr=0.06, rho=0.08, weight_decay=1e-4)
    order = torch.Generator().manual_seed(2)
    for step in range(1, steps + 1):
        pick = torch.randperm(len(x), generator=order)[:batch]
        xb, yb = x[pick], y[pick]
        opt.zero_grad()
        scores = net(xb)
        loss = margin_loss(scores, yb)
        loss.backward()
        opt.step(lambda: margin_loss(net(xb), yb))
        hits = (scores.argmax(1) == yb).sum().item()
        print(f"[{step:02d}] margin loss {loss.item():.7f}   right {hits}/{batch}", flush=True)
    print(sum(p.abs().sum() for p in net.parameters()).item(), flush=True)


main()
