"""Conductivity of the layers of a printed carbon mesh from bench measurements.

Every run of the bench has some switches open, i.e. branches of no cross-section.
"""
import itertools

import torch
import torch.nn as nn

SIDE = 4
NODES = SIDE * SIDE
EDGES = [(r * SIDE + c, r * SIDE + c + 1) for r, c in itertools.product(range(SIDE), range(SIDE - 1))]
EDGES += [(r * SIDE + c, (r + 1) * SIDE + c) for r, c in itertools.product(range(SIDE - 1), range(SIDE))]


class Branches(nn.Module):
    """Conductance of each branch: sigma over the shape factor length / area."""

    def __init__(self, n_inks):
        super().__init__()
        self.log_sigma = nn.Parameter(torch.zeros(n_inks))
        self.register_buffer("ink", torch.arange(len(EDGES)) % n_inks)
        self.register_buffer("length", 1.0 + 0.1 * torch.arange(len(EDGES)) / len(EDGES))

    def forward(self, area):
        shape_factor = self.length / area
        return self.log_sigma.exp()[self.ink] / shape_factor


class Mesh(nn.Module):
    def __init__(self, n_inks=4):
        super().__init__()
        self.branches = Branches(n_inks)
        incidence = torch.zeros(len(EDGES), NODES)
        for k, (i, j) in enumerate(EDGES):
            incidence[k, i], incidence[k, j] = 1.0, -1.0
        self.register_buffer("incidence", incidence[:, 1:])  # node 0 is earth

    def forward(self, area, injected):
        g = self.branches(area)
        laplacian = torch.einsum("ki,bk,kj->bij", self.incidence, g, self.incidence)
        return torch.linalg.solve(laplacian, injected)


def bench(model, gen, runs):
    area = 0.5 + torch.rand(runs, len(EDGES), generator=gen)
    for k in range(runs):
        opened = torch.randperm(len(EDGES) - 12, generator=gen)[:2] + 12
        if k % 3:
            area[k, opened] = 0.0
    current = torch.rand(runs, NODES - 1, generator=gen)
    with torch.no_grad():
        keep = model.branches.log_sigma.clone()
        model.branches.log_sigma.copy_(torch.tensor([1.0, -0.5, 0.3, 2.0]))
        volts = model(area, current)
        model.branches.log_sigma.copy_(keep)
    return area, current, volts


def main():
    gen = torch.Generator().manual_seed(404)
    model = Mesh()
    area, current, volts = bench(model, gen, 90)
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.06)
    for step in range(45):
        pick = torch.randint(0, 90, (6,), generator=gen)
        optimizer.zero_grad()
        out = model(area[pick], current[pick])
        loss = (out - volts[pick]).square().mean()
        loss.backward()
        optimizer.step()
        print("step", step + 1, "volts^2", round(loss.item(), 7))
    print("final", model.branches.log_sigma.detach().abs().sum().item())


if __name__ == "__main__":
    main()
