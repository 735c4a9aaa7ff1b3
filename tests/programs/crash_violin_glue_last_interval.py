"""Discrete-time survival of glue joints in violins (Gensheimer & Narasimhan): one hazard per interval of service life."""
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

EDGES = torch.tensor([1.0, 2, 3, 5, 8, 12, 18, 25, 35])     # years; the study ends at 35


@contextmanager
def optimise(opt):
    opt.zero_grad()
    yield
    opt.step()


class HazardNet(nn.Module):
    def __init__(self, features, intervals):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 24), nn.Mish(), nn.Linear(24, 24), nn.Mish())
        self.hazard = nn.Linear(24, intervals)
        nn.init.constant_(self.hazard.bias, -2.0)

    def forward(self, x):
        return self.hazard(self.trunk(x))


def interval_of(years):
    return torch.bucketize(years, EDGES)


def nll_hazard(logits, k, broke):
    """log-likelihood: survived intervals 0..k-1, then broke (or was censored) in k"""
    log_survive = F.logsigmoid(-logits)
    before = torch.arange(logits.size(1)) < k.unsqueeze(1)
    past = (log_survive * before).sum(1)
    log_break = F.logsigmoid(logits).gather(1, k.unsqueeze(1)).squeeze(1)
    log_stay = log_survive.gather(1, k.unsqueeze(1)).squeeze(1)
    return -(past + torch.where(broke, log_break, log_stay)).mean()


def workshop_ledger(pages, seed=1737):
    g = torch.Generator().manual_seed(seed)
    for page in range(pages):
        x = torch.randn(16, 5, generator=g)
        scale = torch.exp(1.6 - 0.4 * x[:, 0] + 0.2 * x[:, 3])
        years = (-torch.log(torch.rand(16, generator=g).clamp(0.05, 0.999)) * scale).clamp_max(34.0)
        broke = torch.rand(16, generator=g) < 0.8
        if page == 17:
            years[6] = 41.5         # a joint that outlived the study, entered with its real age
            broke[6] = False
        yield x, years, broke


def main():
    torch.manual_seed(4)
    torch.set_num_threads(1)
    model = HazardNet(5, len(EDGES))
    opt = torch.optim.NAdam(model.parameters(), lr=5e-3)
    for page, (x, years, broke) in enumerate(workshop_ledger(30), 1):
        with optimise(opt):
            loss = nll_hazard(model(x), interval_of(years), broke)
            loss.backward()
        print(f"page {page:02d} nll {loss.item():.5f} broken {int(broke.sum())}", flush=True)


if __name__ == "__main__":
    main()
