"""Formation energies of zeolite fragments with a small message passing network, DDP over two ranks.

Fragments are grouped by a node budget, so the ranks see batches with different numbers of graphs; the loss is
the sum over own graphs divided by the global number of graphs (times world size, as DDP averages).
"""
import random
from collections import namedtuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

Fragment = namedtuple("Fragment", "species edges energy")
Packed = namedtuple("Packed", "species src dst graph n_graphs energy")
ELEMENTS = ["Si", "Al", "O", "Na", "K", "H"]
NODE_BUDGET = 48


def grow_fragment(rng):
    n = rng.randint(4, 14)
    species = [rng.choice([0, 0, 1, 2, 2, 2, 3, 5]) for _ in range(n)]
    edges = [(i, rng.randrange(i)) for i in range(1, n)]
    edges += [(rng.randrange(n), rng.randrange(n)) for _ in range(n // 3)]
    energy = sum([-1.6, -1.3, -0.9, -0.2, -0.15, -0.4][s] for s in species) / n + 0.02 * len(edges)
    return Fragment(species, edges, energy)


def library(rank, n=260):
    rng = random.Random(5150 + rank)
    frags = [grow_fragment(rng) for _ in range(n)]
    if rank == 1:
        # exchanged cation, left over when the framework was cut away
        frags[81] = Fragment([ELEMENTS.index("K")], [], -0.15)
    return frags


def budget_batches(frags):
    held, nodes = [], 0
    for f in frags:
        if nodes + len(f.species) > NODE_BUDGET:
            yield pack(held)
            held, nodes = [], 0
        held.append(f)
        nodes += len(f.species)


def pack(frags):
    species, src, dst, graph, base = [], [], [], [], 0
    for k, f in enumerate(frags):
        species += f.species
        graph += [k] * len(f.species)
        for a, b in f.edges:
            src += [base + a, base + b]
            dst += [base + b, base + a]
        base += len(f.species)
    as_t = lambda v: torch.tensor(v, dtype=torch.long)
    return Packed(as_t(species), as_t(src), as_t(dst), as_t(graph), len(frags), torch.tensor([f.energy for f in frags]))


class GraphStandardise(nn.Module):
    """Per-graph standardisation of node features (unbiased variance, as numpy ddof=1)."""

    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))
        self.shift = nn.Parameter(torch.zeros(d))

    def forward(self, h, graph, n_graphs):
        count = torch.zeros(n_graphs).index_add(0, graph, torch.ones(len(graph)))[:, None]
        mean = h.new_zeros(n_graphs, h.size(1)).index_add(0, graph, h) / count
        dev = h - mean[graph]
        var = h.new_zeros(n_graphs, h.size(1)).index_add(0, graph, dev * dev) / (count - 1)
        return dev * torch.rsqrt(var[graph] + 1e-3) * self.gain + self.shift


class ZeoliteNet(nn.Module):
    def __init__(self, d=24, rounds=2):
        super().__init__()
        self.atom = nn.Embedding(len(ELEMENTS), d)
        self.message = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(rounds))
        self.norms = nn.ModuleList(GraphStandardise(d) for _ in range(rounds))
        self.readout = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, b):
        h = emb = self.atom(b.species)
        for lin, norm in zip(self.message, self.norms):
            msg = F.silu(lin(torch.cat([h[b.src], h[b.dst]], -1)))
            h = norm(h + torch.zeros_like(h).index_add(0, b.dst, msg), b.graph, b.n_graphs)
        pooled = torch.zeros(b.n_graphs, 2 * h.size(1)).index_add(0, b.graph, torch.cat([h.relu(), emb], -1))
        return self.readout(pooled / 10).squeeze(-1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    model = DDP(ZeoliteNet())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step, batch in zip(range(1, 37), budget_batches(library(rank))):
        n_all = torch.tensor([float(batch.n_graphs)])
        dist.all_reduce(n_all)
        err = model(batch) - batch.energy
        loss = err.pow(2).sum() * world / n_all.item()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mse = loss.detach() / world
        dist.all_reduce(mse)
        if rank == 0:
            print(f"step {step} graphs {int(n_all)} mse {mse.item():.6f}", flush=True)
    if rank == 0:
        print("sum of weights", f"{sum(p.detach().double().sum() for p in model.parameters()).item():.6f}", flush=True)
    dist.destroy_process_group()
