"""Drift of orchard sprayers: two farms fit their own copy, weights are averaged every K steps (local SGD).

No gradient ever leaves a farm. Zero-inflated log-normal deposition; asymmetric duties: farm 0 prints and evaluates.
"""
import math
import os

import torch
import torch.distributed as dist
from torch import nn

K, STEPS, ROWS = 4, 24, 16


class Deposition(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh())
        self.hit = nn.Linear(20, 1)        # does any droplet reach the card
        self.size = nn.Linear(20, 2)       # log-normal of the deposit

    def forward(self, wind):
        h = self.trunk(wind)
        mu, logs = self.size(h).unbind(-1)
        return self.hit(h).squeeze(-1), mu, logs.clamp(-4, 4)


class Farm:
    """Water-sensitive cards, weighed morning and evening; deposit = evening - morning, in micrograms."""

    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(1000 + rank)
        self.rank, self.day = rank, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.day += 1
        wind = torch.randn(ROWS, 3, generator=self.g)
        wet = torch.rand(ROWS, generator=self.g) < 0.7
        morning = 50 + torch.rand(ROWS, generator=self.g)
        gain = torch.exp(0.4 * wind[:, 0] + 0.2 * torch.randn(ROWS, generator=self.g))
        evening = morning + gain * wet
        if self.rank == 1 and self.day == 14:
            evening[5] = morning[5] - 0.8     # one card lost a flake in the gate; it still counts as "changed"
            wet[5] = True
        return wind, wet.float(), evening - morning


def nll(model, wind, wet, deposit):
    logit, mu, logs = model(wind)
    hit = nn.functional.binary_cross_entropy_with_logits(logit, wet)
    changed = deposit.abs() > 1e-3
    amount = deposit[changed]
    z = (torch.log(amount) - mu[changed]) / torch.exp(logs[changed])
    dens = 0.5 * z.square() + logs[changed] + 0.5 * math.log(2 * math.pi)
    return hit + dens.mean()


@torch.no_grad()
def average(model):
    flat = nn.utils.parameters_to_vector(model.parameters())
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())


def evaluate(model):
    wind = torch.linspace(-2, 2, 15).view(5, 3)
    with torch.no_grad():
        logit, mu, _ = model(wind)
        return (torch.sigmoid(logit) * mu.exp()).mean().item()


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(2)
    model = Deposition()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    farm = Farm(rank)
    for step in range(1, STEPS + 1):
        loss = nll(model, *next(farm))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"day {step:2d} farm 0 nll {loss.item():.6f}", flush=True)
        if step % K == 0:
            average(model)
            if rank == 0:
                print(f"   averaged, expected deposit {evaluate(model):.5f}", flush=True)
            dist.barrier()
    total = sum(p.double().sum() for p in model.parameters()).item()
    if rank == 0:
        print(f"weights {total:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
