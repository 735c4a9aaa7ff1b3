"""Sparse mixture of experts that predicts the yarn tension of looms.  Top-2 routing, noisy gates,
load-balancing and z loss.  An expert that nobody has called for a while is re-initialised from the
busiest one plus noise, and its Adam moments are dropped."""
import torch
import torch.nn as nn
import torch.nn.functional as F

E, K, D = 6, 2, 24


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, E, bias=False)
        self.jitter = 0.3

    def forward(self, x):
        logits = self.gate(x)
        noisy = logits + self.jitter * torch.randn_like(logits) if self.training else logits
        top = noisy.topk(K, dim=-1).indices
        keep = torch.zeros_like(logits, dtype=torch.bool).scatter(1, top, True)
        weights = logits.masked_fill(~keep, float("-inf")).softmax(-1)
        share = keep.float().mean(0) / K                      # not differentiable, as in Switch
        balance = E * (share * logits.softmax(-1).mean(0)).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        return weights, keep, balance, z


class Experts(nn.ModuleList):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D)) for _ in range(E))

    def forward(self, x, weights, keep):
        y = torch.zeros_like(x)
        for e, net in enumerate(self):
            rows = keep[:, e].nonzero().squeeze(1)
            y = y.index_add(0, rows, weights[rows, e:e + 1] * net(x[rows]))   # rows may be empty
        return y


class LoomNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.router, self.experts, self.out = nn.Linear(10, D), Router(), Experts(), nn.Linear(D, 1)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        w, keep, bal, z = self.router(h)
        return self.out(h + self.experts(h, w, keep)).squeeze(-1), keep, bal, z


@torch.no_grad()
def revive(model, opt, idle, patience=12):
    dead = [e for e in range(E) if idle[e] >= patience]
    for e in dead:
        donor = int(idle.argmin())
        for p, q in zip(model.experts[e].parameters(), model.experts[donor].parameters()):
            p.copy_(q + 0.05 * torch.randn_like(q))
            opt.state.pop(p, None)
        model.router.gate.weight[e] = model.router.gate.weight[donor] + 0.02 * torch.randn(D)
        idle[e] = 0
    return dead


def loom_shift(step, n=40):
    """Two weaves; the second shift of each day runs the stiff warp with higher tensions."""
    x = torch.randn(n, 10)
    y = x[:, 0] * x[:, 1] + torch.where(x[:, 2] > 0, x[:, 3].sin(), x[:, 4].abs())
    if step % 20 == 13:
        y = y * 2.5
    return x, y


def main():
    torch.manual_seed(1801)
    torch.set_num_threads(1)
    model = LoomNet()
    with torch.no_grad():
        model.router.gate.weight.mul_(3)
    opt = torch.optim.Adam(model.parameters(), lr=6e-3)
    idle = torch.zeros(E)
    for step in range(1, 81):
        x, y = loom_shift(step)
        pred, keep, bal, z = model(x)
        err = F.huber_loss(pred, y, delta=2.0)
        loss = err + 0.02 * bal + 1e-3 * z
        opt.zero_grad()
        loss.backward()
        opt.step()
        used = keep.any(0)
        idle = torch.where(keep.float().mean(0) > 0.3, torch.zeros(E), idle + 1)
        per_expert = [float((pred - y).detach()[keep[:, e]].abs().mean()) for e in range(E)]   # nan: nobody came
        back = revive(model, opt, idle)
        print(f"{step:2d} loss {loss.item():.5f} bal {bal.item():.4f} used {int(used.sum())} "
              f"mae " + " ".join(f"{v:.2f}" for v in per_expert) + (f" revived {back}" if back else ""))


main()
