# Three things to predict for each greenhouse bench; their weights are learned as log variances.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
g = torch.Generator().manual_seed(770)
TASKS = ("leaf temperature", "species", "aphids")
ALLOWED = torch.tensor([[1, 1, 0, 0, 1], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)   # species per house


class Bench(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU())
        self.temperature = nn.Linear(24, 1)
        self.species = nn.Linear(24, 5)
        self.aphids = nn.Linear(24, 1)
        self.s = nn.Parameter(torch.zeros(3))


def benches(n, day):
    house = torch.randint(0, 3, (n,), generator=g)
    x = torch.randn(n, 8, generator=g)
    temperature = 0.6 * x[:, 0] - 0.4 * x[:, 1]
    score = (x[:, 2:7] + F.one_hot(house, 3).float() @ torch.eye(3, 5)).masked_fill(~ALLOWED[house], -torch.inf)
    species = score.argmax(1)
    aphids = torch.poisson(torch.exp(0.5 * x[:, 7]), generator=g)
    temperature[torch.rand(n, generator=g) < 0.3] = torch.nan      # the probe had fallen off
    if day % 9 == 4:
        temperature[:] = torch.nan                                 # the logger was being read out
    if day % 6 == 5:
        aphids[:] = torch.nan                                      # nobody counts on Sundays
    return house, x, temperature, species, aphids


model = Bench()
slow = [p for n, p in model.named_parameters() if n != "s"]
opt = torch.optim.Adam([{"params": slow, "lr": 6e-3}, {"params": [model.s], "lr": 8e-2}])
rate = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=15)

for day in range(1, 41):
    house, x, temperature, species, aphids = benches(40, day)
    h = model.trunk(x)
    losses = {}

    known = ~torch.isnan(temperature)
    if known.any():
        guess = model.temperature(h).squeeze(1)
        losses["leaf temperature"] = (guess - torch.where(known, temperature, guess)).square().sum() / known.sum()

    logits = model.species(h).masked_fill(~ALLOWED[house], -torch.inf)
    losses["species"] = F.cross_entropy(logits, species)

    counted = ~torch.isnan(aphids)
    if counted.any():
        rate_log = model.aphids(h).squeeze(1)
        n = torch.nan_to_num(aphids)
        deviance = 2 * (torch.xlogy(n, n) - n * rate_log - n + rate_log.exp())
        losses["aphids"] = deviance[counted].mean()

    total = torch.zeros(())
    for k, name in enumerate(TASKS):
        if name in losses:
            total = total + torch.exp(-model.s[k]) * losses[name] + 0.5 * model.s[k]

    opt.zero_grad()
    total.backward()
    opt.step()
    rate.step()
    shown = "  ".join(f"{n} {losses[n].item():.4f}" if n in losses else f"{n} ------" for n in TASKS)
    print(f"day {day:2d}  total {total.item():+.4f}  {shown}")

print("log variances", [round(v, 4) for v in model.s.tolist()])
print("weights squared", sum(p.detach().square().sum().item() for p in model.parameters()))
