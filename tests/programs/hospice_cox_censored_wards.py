# Cox proportional hazards on hospice stays, stratified by ward.
# The partial likelihood is summed, not averaged (as in R's coxph), so the numbers are large.
# A ward of which every stay is censored contributes exactly 0 and has no c-index (nan in the log).
from dataclasses import dataclass
from typing import Iterator
import math

import torch
import torch.nn as nn


@dataclass
class Ward:
    x: torch.Tensor
    time: torch.Tensor
    event: torch.Tensor
    name: str


WARDS = ["alder", "birch", "cedar", "dogwood"]


def admissions(seed: int, months: int) -> Iterator[Ward]:
    g = torch.Generator().manual_seed(seed)
    beta = torch.tensor([0.9, -0.6, 0.0, 0.3, 0.0, -0.2])
    for m in range(months):
        n = 96
        x = torch.randn(n, 6, generator=g)
        t = -torch.log(torch.rand(n, generator=g).clamp_min(1e-6)) * torch.exp(-(x @ beta)) * 30
        name = WARDS[m % 4]
        horizon = 60.0 if name != "dogwood" or m % 8 == 3 else 0.0  # dogwood: transfers only
        e = (t <= horizon).float()
        yield Ward(x, t.clamp_max(max(horizon, 1.0)), e, name)


class RiskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 1, bias=False)
        self.bend = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1, bias=False))

    def forward(self, x):
        return (self.lin(x) + 0.1 * self.bend(x)).squeeze(-1)


def breslow(eta, w: Ward):
    """-sum over events of (eta_i - logsumexp over those still at risk)"""
    at_risk = w.time.unsqueeze(0) >= w.time.unsqueeze(1)          # row i: who is at risk at t_i
    # -inf where not at risk; each row keeps at least i itself
    bias = torch.zeros_like(at_risk, dtype=eta.dtype).masked_fill(~at_risk, -math.inf)
    log_denominator = torch.logsumexp(eta.unsqueeze(0) + bias, dim=1)
    return -(w.event * (eta - log_denominator)).sum()


@torch.no_grad()
def c_index(eta, w: Ward) -> float:
    comparable = (w.time.unsqueeze(1) < w.time.unsqueeze(0)) & (w.event.unsqueeze(1) > 0)
    right = (eta.unsqueeze(1) > eta.unsqueeze(0)) & comparable
    return (right.sum() / comparable.sum()).item()     # 0/0 in a ward without deaths


def train(months=40):
    torch.manual_seed(8)
    net = RiskNet()
    opt = torch.optim.SGD(net.parameters(), lr=2e-3, momentum=0.8, weight_decay=1e-3)
    history = {k: [] for k in WARDS}
    for month, ward in enumerate(admissions(52, months), 1):
        eta = net(ward.x)
        loss = breslow(eta, ward)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 25.0)
        opt.step()
        ci = c_index(eta, ward)
        history[ward.name].append(ci)
        print(f"month {month:3d} {ward.name:<8} deaths {int(ward.event.sum()):3d} "
              f"-logPL {loss.item():10.4f}  c {ci:.4f}")
    for k, v in history.items():
        print(k, "mean c-index", f"{torch.tensor(v).nanmean().item():.4f}")


if __name__ == "__main__":
    train()
