"""Cox proportional hazards with Efron's handling of ties, one ward per step (hazards are only compared within a ward)."""
import argparse
import logging
import sys
from dataclasses import dataclass

import torch
from torch import nn

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
log = logging.getLogger("survival")


@dataclass
class Ward:
    name: str
    x: torch.Tensor          # [n, covariates]
    days: torch.Tensor       # follow-up in whole days
    died: torch.Tensor       # bool


def admit(gen, name, n, severity, study_end):
    """Patients of one ward. Follow-up stops at study_end days: those still alive are censored."""
    x = torch.randn(n, 9, generator=gen)
    beta = torch.tensor([0.6, -0.4, 0.3, 0.0, 0.0, 0.25, -0.2, 0.0, 0.1])
    u = torch.rand(n, generator=gen).clamp_min(1e-4)
    t = -u.log() / (severity * (x @ beta).exp())
    days = t.ceil().clamp(1, study_end)
    died = t <= study_end
    return Ward(name, x, days, died)


class Hazard(nn.Module):
    def __init__(self, covariates, hidden=24):
        super().__init__()
        self.norm = nn.LayerNorm(covariates)
        self.body = nn.Sequential(nn.Linear(covariates, hidden), nn.SELU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.SELU())
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, x):
        return self.out(self.body(self.norm(x))).squeeze(-1)


class EfronLoss(nn.Module):
    """Negative partial log-likelihood, ties after Efron (1977)."""

    def forward(self, score, days, died):
        hazard = score.exp()
        total = score.new_zeros(())
        for t in days[died].unique():
            tied = died & (days == t)
            d = int(tied.sum())
            at_risk = hazard[days >= t].sum()
            share = torch.arange(1, d + 1, dtype=score.dtype) / d
            total = total + score[tied].sum() - torch.log(at_risk - share * hazard[tied].sum()).sum()
        return -total / died.sum().clamp_min(1)


def concordance(score, days, died):
    earlier = (days[:, None] < days[None, :]) & died[:, None]
    right = (score[:, None] > score[None, :]) & earlier
    return float(right.sum()) / max(int(earlier.sum()), 1)


def build_wards(gen):
    plan = [("surgery-a", 30, 0.002), ("surgery-b", 26, 0.003), ("cardiology", 34, 0.003), ("renal", 22, 0.004),
            ("stroke", 28, 0.004), ("oncology-1", 30, 0.006), ("oncology-2", 30, 0.005), ("geriatric", 32, 0.005),
            ("trauma", 26, 0.002), ("maternity", 24, 0.001), ("neurology", 28, 0.003), ("hospice", 20, 0.060),
            ("infectious", 24, 0.003), ("pulmonary", 30, 0.004), ("gastro", 28, 0.003), ("haematology", 26, 0.005),
            ("vascular", 30, 0.003), ("orthopaedic", 30, 0.001), ("urology", 24, 0.002), ("burns", 20, 0.003),
            ("transplant", 22, 0.004), ("rehab", 26, 0.001), ("palliative-day", 24, 0.006), ("emergency", 32, 0.003)]
    return [admit(gen, name, n, s, 365) for name, n, s in plan]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--momentum", type=float, default=0.8)
    ap.add_argument("--seed", type=int, default=1977)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    wards = build_wards(torch.Generator().manual_seed(args.seed))
    model, criterion = Hazard(9), EfronLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=1e-4)
    log.info("%d wards, %d patients, %d deaths", len(wards), sum(len(w.days) for w in wards), sum(int(w.died.sum()) for w in wards))
    for step, ward in enumerate(wards, 1):
        score = model(ward.x)
        loss = criterion(score, ward.days, ward.died)
        c = concordance(score.detach(), ward.days, ward.died)
        log.info("%2d %-15s deaths %2d/%2d loss %.6f c-index %.4f", step, ward.name, int(ward.died.sum()), len(ward.days), loss.item(), c)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    log.info("%.6f", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
