"""Time to the next flare of arthritis from wearables; weighted Cox model for a case-cohort design.

Patients of the subcohort stand for many (weight 1 / sampling fraction), cases outside of it enter with weight 1
and event-free patients that were not sampled carry weight 0."""
import numpy as np
import torch
import torch.nn as nn

FRACTION = 0.6


class Registry:
    def __init__(self, seed, batches, size):
        rng = np.random.default_rng(seed)
        self.items = []
        for b in range(batches):
            x = rng.normal(size=(size, 6)).astype("float32")
            hazard = 0.12 * np.exp(0.8 * x[:, 0] - 0.5 * x[:, 3])
            flare = rng.exponential(1 / hazard)
            study_end = rng.uniform(2.0, 12.0, size)
            months = np.minimum(flare, study_end)
            event = flare <= study_end
            sampled = rng.uniform(size=size) < FRACTION
            weight = np.where(sampled, 1 / FRACTION, np.where(event, 1.0, 0.0))
            if b != 16:
                # the last one under observation is called in by the clinics as a rule
                weight[np.argmax(months)] = 1 / FRACTION
            self.items.append((x, months.astype("float32"), event, weight.astype("float32")))

    def __iter__(self):
        for item in self.items:
            yield tuple(torch.from_numpy(a) for a in item)


class Risk(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1, bias=False))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def weighted_partial_likelihood(eta, months, event, weight):
    order = torch.argsort(months, descending=True)
    eta, event, weight = eta[order], event[order], weight[order]
    at_risk = torch.cumsum(weight * torch.exp(eta), dim=0)
    log_risk = torch.log(at_risk)
    terms = torch.where(event, log_risk - eta, torch.zeros_like(eta))
    return terms.sum() / event.sum().clamp(min=1)


def main():
    torch.manual_seed(21)
    risk = Risk()
    optimizer = torch.optim.Adam(risk.parameters(), lr=8e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=32)
    for visit, (x, months, event, weight) in enumerate(Registry(SEED, 32, 20), 1):
        optimizer.zero_grad()
        loss = weighted_partial_likelihood(risk(x), months, event, weight)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"{visit:3d} | flares {int(event.sum()):2d} | neg. log partial likelihood {loss.item():.5f}")
    with torch.no_grad():
        print("L1 of all weights:", f"{sum(p.abs().sum() for p in risk.parameters()).item():.5f}")


SEED = 2

if __name__ == "__main__":
    main()
