"""Delirium risk on the ward, learned across nine hospitals that do not share records.

Fair federated averaging (q-FFL): hospitals with a high loss count more.  The server keeps its own
optimizer (momentum on the q-weighted pseudo-gradient); hospitals run plain local descent.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.func import functional_call

ROUNDS = 45
PER_ROUND = 4
LOCAL_STEPS = 4
LOCAL_LR = 0.15
Q = 0.5


@dataclass
class Hospital:
    name: str
    x: torch.Tensor
    y: torch.Tensor


class RiskNet(nn.Module):
    def __init__(self, n_in: int, width: int = 16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def make_hospitals(gen: torch.Generator) -> list[Hospital]:
    names = ["Alba", "Brue", "Corve", "Deben", "Exe", "Frome", "Gwash", "Hamble", "Isle"]
    sizes = [140, 120, 96, 90, 80, 74, 60, 40, 6]          # the Isle is a cottage hospital
    w = torch.randn(7, generator=gen)
    out = []
    for name, n in zip(names, sizes):
        shift = 0.3 * torch.randn(7, generator=gen)
        x = torch.randn(n, 7, generator=gen) + shift
        noise = 0.9 if n > 10 else 0.0
        y = torch.sign(x @ w + noise * torch.randn(n, generator=gen))
        out.append(Hospital(name, x, y))
    return out


def hinge(model, params, h: Hospital):
    margin = h.y * functional_call(model, params, (h.x,))
    return torch.relu(1.0 - margin).mean()


def local_train(model, start: dict, h: Hospital):
    """Loss of the global model on this hospital, and how far local descent went."""
    params = {k: v.detach().clone().requires_grad_() for k, v in start.items()}
    first = None
    for _ in range(LOCAL_STEPS):
        loss = hinge(model, params, h)
        first = loss.detach() if first is None else first
        grads = torch.autograd.grad(loss, list(params.values()))
        params = {k: (p - LOCAL_LR * g).detach().requires_grad_()
                  for (k, p), g in zip(params.items(), grads)}
    moved = [start[k].detach() - params[k].detach() for k in start]
    return first, moved


class QFedAvgServer(torch.optim.Optimizer):
    def __init__(self, params, q: float, lipschitz: float, momentum: float = 0.3):
        super().__init__(params, dict(q=q, lipschitz=lipschitz, momentum=momentum))

    @torch.no_grad()
    def step(self, reports):
        group = self.param_groups[0]
        q, lip = group["q"], group["lipschitz"]
        total, denom = None, 0.0
        for loss, moved in reports:
            grads = [lip * d for d in moved]
            squared = sum((g * g).sum() for g in grads)
            curvature = q * loss.pow(q - 1) * squared
            denom = denom + curvature + lip * loss.pow(q)
            weighted = [loss.pow(q) * g for g in grads]
            total = weighted if total is None else [a + b for a, b in zip(total, weighted)]
        for p, t in zip(group["params"], total):
            buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
            buf.mul_(group["momentum"]).add_(t / denom)
            p.sub_(buf)


def main():
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(5)
    hospitals = make_hospitals(gen)
    model = RiskNet(7)
    server = QFedAvgServer(model.parameters(), q=Q, lipschitz=1.0 / LOCAL_LR)
    for rnd in range(1, ROUNDS + 1):
        chosen = torch.randperm(len(hospitals), generator=gen)[:PER_ROUND].tolist()
        start = dict(model.named_parameters())
        reports = [local_train(model, start, hospitals[i]) for i in chosen]
        mean = sum(r[0].item() for r in reports) / len(reports)
        server.step(reports)
        print(f"round {rnd:02d} [{' '.join(hospitals[i].name for i in chosen)}] loss {mean:.7f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
