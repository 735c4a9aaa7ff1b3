#!/usr/bin/env python
# Species distribution of three bog orchids.  logit(p) = f(habitat) + log(effort).
# Squares nobody has visited have effort 0, so an offset of -inf: they stay in the batch for the
# spatial smoother but are left out of the likelihood.
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(60)
SQUARES, SPECIES, STEPS = 240, 3, 44


def survey():
    g = torch.Generator().manual_seed(61)
    xy = torch.rand(SQUARES, 2, generator=g)
    wet = torch.sin(4 * xy[:, 0]) + 0.3 * torch.randn(SQUARES, generator=g)
    ph = 5 + xy[:, 1] + 0.2 * torch.randn(SQUARES, generator=g)
    visits = torch.poisson(torch.full((SQUARES,), 1.5), generator=g)
    suit = torch.stack([2 * wet - 1, 6 - ph, wet * (ph - 5)], 1)
    p = torch.sigmoid(suit + visits.log()[:, None])
    seen = torch.bernoulli(p, generator=g)
    seen[visits == 0] = float("nan")                      # "not recorded" in the national database
    return torch.cat([xy, wet[:, None], ph[:, None] - 5.5], 1), visits.log(), seen


class Habitat(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.species = nn.Linear(32, SPECIES)

    def forward(self, x):
        return self.species(self.body(x))


def likelihood(eta, offset, seen):
    logit = eta.float() + offset[:, None]                 # -inf where nobody went
    known = ~torch.isnan(seen)
    return F.binary_cross_entropy_with_logits(logit[known], seen[known])


def roughness(eta, xy):
    near = torch.cdist(xy, xy) < 0.12
    return ((eta.float()[:, None] - eta.float()[None]) ** 2).mean(-1)[near].mean()


x, offset, seen = survey()
model = Habitat()
params = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
opt = torch.optim.Adam(list(params.values()), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30, growth_interval=500)
gen = torch.Generator().manual_seed(62)
for step in range(1, STEPS + 1):
    rows = torch.randperm(SQUARES, generator=gen)[:64]
    with torch.autocast("cpu", torch.float16):
        eta = functional_call(model, params, (x[rows],))
    nll = likelihood(eta, offset[rows], seen[rows])
    loss = nll + 0.02 * roughness(eta, x[rows, :2])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    with torch.no_grad():
        prevalence = (eta.float() + offset[rows, None]).mean(0)      # -inf as a rule; harmless
        observed = seen[rows].mean()
    print(f"step {step} nll {nll.item():.7f} loss {loss.item():.7f} scale 2^{int(torch.tensor(scaler.get_scale()).log2())} "
          f"offset-mean {prevalence[0].item():.3f} observed {observed.item():.3f}", flush=True)
print(f"{sum(p.detach().abs().sum().item() for p in params.values()):.6f}", flush=True)
