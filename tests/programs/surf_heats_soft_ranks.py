"""Predict the order of surfers in a heat. Loss: one minus Spearman's rho with a soft rank of our own."""
import torch
from torch import nn

torch.manual_seed(77)
gen = torch.Generator().manual_seed(78)

HEATS, SURFERS, FEATS = 400, 8, 10


class SoftRank(torch.autograd.Function):
    """rank_i = 1/2 + sum_j sigmoid((x_i - x_j) / tau)"""

    @staticmethod
    def forward(ctx, x, tau):
        diff = (x.unsqueeze(-1) - x.unsqueeze(-2)) / tau
        ctx.save_for_backward(diff)
        ctx.tau = tau
        return 0.5 + torch.sigmoid(diff).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        (diff,) = ctx.saved_tensors
        e = torch.exp(diff)
        slope = e / (1 + e) ** 2 / ctx.tau
        own = grad * slope.sum(-1)
        rest = (grad.unsqueeze(-1) * slope).sum(-2)
        return own - rest, None


class HeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.surfer = nn.Sequential(nn.Linear(FEATS, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU())
        self.heat = nn.Linear(32, 32)
        self.score = nn.Linear(32, 1)

    def forward(self, x):
        h = self.surfer(x)
        h = torch.nn.functional.elu(h + self.heat(h.mean(1, keepdim=True)))
        return self.score(h).squeeze(-1)


def spearman(a, b):
    a = a - a.mean(-1, keepdim=True)
    b = b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-6)


def heats():
    x = torch.randn(HEATS, SURFERS, FEATS, generator=gen)
    skill = x[..., 0] + 0.6 * x[..., 1] * x[..., 2] + 0.3 * torch.randn(HEATS, SURFERS, generator=gen)
    return x, skill.argsort(-1).argsort(-1).float() + 1


def main():
    x, place = heats()
    net = HeatNet()
    opt = torch.optim.NAdam(net.parameters(), lr=4e-3)
    tau = 1.0
    for step in range(1, 56):
        pick = torch.randint(0, HEATS, (96,), generator=gen)
        scores = net(x[pick])
        loss = (1 - spearman(SoftRank.apply(scores, tau), place[pick])).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print("step", step, "tau", round(tau, 5), "loss", f"{loss.item():.6f}", flush=True)
        tau = max(0.85 * tau, 0.001)          # sharpen towards the hard rank
    print("final", sum(w.detach().abs().sum().item() for w in net.parameters()), flush=True)


main()
