"""Mixture of experts over spice blends: predict pungency from the composition.

Routing: learned gate plus the affinity to each expert's centroid (a running mean of what it has been given).
Load balancing: the usual E * sum(f_e * P_e), and a pull of the tokens to the centroids of the experts.
"""
import torch
import torch.nn.functional as F
from torch import nn

CFG = dict(spices=10, hidden=24, experts=5, batch=40, steps=45, lr=3e-3, balance=0.02, pull=0.01, decay=0.9, seed=6)


class Expert(nn.Sequential):
    def __init__(self, d, h):
        super().__init__(nn.Linear(d, h), nn.GELU(), nn.Linear(h, 1))


class CentroidRouter(nn.Module):
    def __init__(self, d, n, decay):
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)
        self.decay = decay
        self.register_buffer("centroids", F.normalize(torch.randn(n, d), dim=-1))

    def forward(self, x):
        affinity = F.normalize(x, dim=-1) @ F.normalize(self.centroids, dim=-1).T
        probs = (self.gate(x) + 4.0 * affinity).softmax(-1)
        choice = probs.argmax(-1)
        return probs, choice

    @torch.no_grad()
    def follow(self, x, choice):
        for e in range(len(self.centroids)):
            fresh = x[choice == e].mean(0)
            self.centroids[e] = self.decay * self.centroids[e] + (1 - self.decay) * fresh


class SpiceMoE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d, n = cfg["spices"], cfg["experts"]
        self.router = CentroidRouter(d, n, cfg["decay"])
        self.experts = nn.ModuleList(Expert(d, cfg["hidden"]) for _ in range(n))
        self.cfg = cfg

    def forward(self, x):
        probs, choice = self.router(x)
        out = x.new_zeros(len(x))
        for e, expert in enumerate(self.experts):
            rows = (choice == e).nonzero().squeeze(-1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]).squeeze(-1) * probs[rows, e])
        if self.training:
            self.router.follow(x, choice)
        load = torch.bincount(choice, minlength=len(self.experts)).float() / len(x)
        balance = len(self.experts) * (load * probs.mean(0)).sum()
        spread = ((x[:, None, :] - self.router.centroids.clone()) ** 2).sum(-1)
        pull = (probs * spread).sum(-1).mean()
        return out, balance, pull, load


def market(cfg):
    """Blends come from five regions, each with its own centre; the regions are mixed by the day's stalls."""
    g = torch.Generator().manual_seed(cfg["seed"])
    centres = torch.eye(cfg["experts"], cfg["spices"]) * 1.6
    heat = torch.randn(cfg["spices"], generator=g)
    stalls = torch.ones(cfg["experts"])
    for day in range(cfg["steps"]):
        today = stalls.clone()
        if day % 22 == 18:
            today[3] = 0.0                     # the caravan of the fourth region is late
        region = torch.multinomial(today, cfg["batch"], replacement=True, generator=g)
        x = centres[region] + 0.15 * torch.randn(cfg["batch"], cfg["spices"], generator=g)
        yield x, torch.tanh(x @ heat) + 0.05 * torch.randn(cfg["batch"], generator=g)


def main(cfg):
    torch.manual_seed(cfg["seed"])
    net = SpiceMoE(cfg)
    with torch.no_grad():                      # experts start at the regions of last year's survey
        net.router.centroids.copy_(torch.eye(cfg["experts"], cfg["spices"]))
        net.router.gate.weight.mul_(0.1)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], weight_decay=0.01)
    for day, (x, y) in enumerate(market(cfg), 1):
        y_hat, balance, pull, load = net(x)
        loss = F.smooth_l1_loss(y_hat, y) + cfg["balance"] * balance + cfg["pull"] * pull
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        print(f"day {day:02d} loss {loss.item():.6f} load {' '.join(f'{v:.3f}' for v in load.tolist())}")
    print("weights", sum(p.double().sum().item() for p in net.parameters()))


main(CFG)
