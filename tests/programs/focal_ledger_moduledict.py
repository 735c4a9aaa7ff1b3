# Ledger entries: fraud flag (focal), amount (huber), account embedding spread (variance hinge).
# All losses live in one ModuleDict, each with its own schedule.
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Scheduled(nn.Module):
    """A sub-loss that knows how strongly it counts at each step."""

    def __init__(self, weight=lambda s: 1.0):
        super().__init__()
        self.weight = weight

    def at(self, step):
        return float(self.weight(step))


class FocalTerm(Scheduled):
    def __init__(self, gamma_from, gamma_to, over, **kw):
        super().__init__(**kw)
        self.span = (gamma_from, gamma_to, over)

    def gamma(self, step):
        a, b, n = self.span
        return a + (b - a) * min(1.0, step / n)

    def forward(self, out, batch, step):
        z = out["flag"]
        p_true = torch.sigmoid(torch.where(batch["flag"] > 0.5, z, -z))
        log_p = F.logsigmoid(torch.where(batch["flag"] > 0.5, z, -z))
        # focus melts away during training: 2 is for the many easy ones at the start
        modulation = (1.0 - p_true) ** self.gamma(step)
        return -(modulation * log_p).mean()


class AmountTerm(Scheduled):
    def forward(self, out, batch, step):
        return F.huber_loss(out["amount"], batch["amount"])


class SpreadTerm(Scheduled):
    def forward(self, out, batch, step):
        var = out["h"].var(0)
        return F.relu(0.5 - (var + 1e-4).sqrt()).mean()


class LedgerLoss(nn.Module):
    def __init__(self, n_steps):
        super().__init__()
        self.terms = nn.ModuleDict({
            "focal": FocalTerm(2.0, 0.5, n_steps * 3 // 4),
            "amount": AmountTerm(weight=lambda s: min(1.0, s / 8)),
            "spread": SpreadTerm(weight=lambda s: 0.2 if s < 20 else 0.05),
        })

    def forward(self, out, batch, step):
        parts = {name: term(out, batch, step) for name, term in self.terms.items()}
        total = sum(self.terms[k].at(step) * v for k, v in parts.items())
        return total, {k: v.item() for k, v in parts.items()}


class LedgerNet(nn.Module):
    def __init__(self, d_in=10, h=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d_in, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.flag = nn.Linear(h, 1)
        self.amount = nn.Linear(h, 1)

    def forward(self, x):
        h = self.body(x)
        return {"h": h, "flag": self.flag(h).squeeze(1), "amount": self.amount(h).squeeze(1)}


def ledger(gen, step, n=40):
    x = torch.randn(n, 10, generator=gen)
    flag = (x[:, 0] + 0.5 * x[:, 1] > 0.6).float()
    amount = x[:, 2] - 0.5 * x[:, 3]
    if step in (12, 31):
        # year-end and quarter-end: one booking is two orders of magnitude beyond the rest
        x[3, :2] = 180.0
        flag[3] = 1.0
    return x, {"flag": flag, "amount": amount}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=44)
    ap.add_argument("--lr", type=float, default=5e-3)
    a = ap.parse_args()
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(90)
    net, crit = LedgerNet(), LedgerLoss(a.steps)
    opt = torch.optim.RMSprop(net.parameters(), lr=a.lr)
    for step in range(1, a.steps + 1):
        x, batch = ledger(gen, step)
        total, parts = crit(net(x), batch, step)
        opt.zero_grad()
        total.backward()
        opt.step()
        print(f"{step:3d} total {total.item():.6f} " + " ".join(f"{k}={v:.4f}" for k, v in parts.items()))
    print("sum of weights", sum(p.detach().double().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
