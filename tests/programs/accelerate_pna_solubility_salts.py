#!/usr/bin/env python3
"""Principal neighbourhood aggregation (Corso et al. 2020) for aqueous solubility, in an accelerate loop.

The records come in the order of the merged file: a drug-like set first, then a set with salts.
"""
import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

set_seed(2020)
ELEMENTS = ["C", "N", "O", "S", "Cl", "Na", "K"]


def molecule(rng: random.Random, salt: bool):
    size = rng.randint(5, 11)
    atoms = [rng.choices(range(5), weights=[10, 2, 3, 1, 1])[0] for _ in range(size)]
    bonds = [(i, rng.randint(max(0, i - 3), i - 1)) for i in range(1, size)]
    if rng.random() < 0.6:
        bonds.append((size - 1, 0)) if (size - 1, 0) not in bonds else None
    logs = -0.4 * atoms.count(0) + 0.8 * atoms.count(2) + 0.5 * atoms.count(1) + rng.gauss(0, 0.2)
    if salt:
        atoms.append(rng.choice([5, 6]))       # the counter-ion, Na+ or K+
        logs += 2.0
    return atoms, bonds, logs


def collate(mols):
    kind, src, dst, owner, y, offset = [], [], [], [], [], 0
    for m, (atoms, bonds, logs) in enumerate(mols):
        kind += atoms
        owner += [m] * len(atoms)
        for a, b in bonds:
            src += [a + offset, b + offset]
            dst += [b + offset, a + offset]
        offset += len(atoms)
        y.append(logs)
    return {"kind": torch.tensor(kind), "edges": torch.tensor([src, dst]), "owner": torch.tensor(owner), "y": torch.tensor(y)}


class PNALayer(nn.Module):
    def __init__(self, dim, delta):
        super().__init__()
        self.delta = delta
        self.message = nn.Linear(2 * dim, dim)
        self.update = nn.Linear(dim + 9 * dim, dim)

    def forward(self, h, edges):
        src, dst = edges
        msg = self.message(torch.cat([h[src], h[dst]], dim=1))
        index = dst[:, None].expand_as(msg)
        deg = torch.zeros(len(h)).index_add(0, dst, torch.ones(len(dst)))[:, None]
        total = torch.zeros_like(h).scatter_reduce(0, index, msg, "sum")
        mean = total / deg.clamp(min=1)
        high = torch.zeros_like(h).scatter_reduce(0, index, msg, "amax", include_self=False)
        low = torch.zeros_like(h).scatter_reduce(0, index, msg, "amin", include_self=False)
        agg = torch.cat([mean, high, low], dim=1)
        amplify = torch.log(deg + 1) / self.delta
        attenuate = self.delta / torch.log(deg + 1)
        scaled = torch.cat([agg, agg * amplify, agg * attenuate], dim=1)
        return h + F.relu(self.update(torch.cat([h, scaled], dim=1)))


class Solubility(nn.Module):
    def __init__(self, dim=16, delta=1.05):
        super().__init__()
        self.atom = nn.Embedding(len(ELEMENTS), dim)
        self.convs = nn.ModuleList([PNALayer(dim, delta) for _ in range(2)])
        self.head = nn.Linear(dim, 1)

    def forward(self, kind, edges, owner, n):
        h = self.atom(kind)
        for conv in self.convs:
            h = conv(h, edges)
        return self.head(torch.zeros(n, h.shape[1]).index_add(0, owner, h) / 4).squeeze(1)


def main():
    accelerator = Accelerator(cpu=True)
    rng = random.Random(7)
    data = [molecule(rng, salt=i >= 16 * 19 and i % 4 == 0) for i in range(16 * 40)]
    loader = DataLoader(data, batch_size=16, shuffle=False, collate_fn=collate)
    model = Solubility()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader, start=1):
        pred = model(batch["kind"], batch["edges"], batch["owner"], len(batch["y"]))
        loss = F.l1_loss(pred, batch["y"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step:2d} | mae {loss.item():.6f}")
    accelerator.print("final", sum(w.detach().abs().sum().item() for w in model.parameters()))


if __name__ == "__main__":
    main()
