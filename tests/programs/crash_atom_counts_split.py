"""Molecular dipole moments from per-atom charges: a flat batch of atoms is split back into molecules."""
from dataclasses import dataclass, field
from typing import List

import torch
from torch import nn

ELEMENTS = {"H": 0, "C": 1, "N": 2, "O": 3, "S": 4}


@dataclass
class Molecule:
    symbols: List[str]
    xyz: torch.Tensor
    n_atoms: int                      # as the header of the xyz file says
    dipole: float = field(default=0.0)


def invent_library(n, seed=50):
    g = torch.Generator().manual_seed(seed)
    names = list(ELEMENTS)
    library = []
    for i in range(n):
        size = int(torch.randint(4, 12, (1,), generator=g))
        symbols = [names[int(k)] for k in torch.randint(0, len(names), (size,), generator=g)]
        xyz = torch.randn(size, 3, generator=g)
        charge = torch.tensor([0.3, 0.0, -0.3, -0.5, -0.1])[[ELEMENTS[s] for s in symbols]]
        dipole = float(((charge - charge.mean())[:, None] * xyz).sum(0).norm())
        header = size - 1 if i == 101 else size         # this file counts heavy atoms and one hydrogen too few
        library.append(Molecule(symbols, xyz, header, dipole))
    return library


def collate(molecules):
    species = torch.tensor([ELEMENTS[s] for m in molecules for s in m.symbols])
    xyz = torch.cat([m.xyz for m in molecules])
    counts = [m.n_atoms for m in molecules]
    return species, xyz, counts, torch.tensor([m.dipole for m in molecules])


class ChargeNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.element = nn.Embedding(len(ELEMENTS), width)
        self.charge = nn.Sequential(nn.Linear(width + 1, width), nn.Softplus(), nn.Linear(width, 1))

    def forward(self, species, xyz, counts):
        radius = xyz.norm(dim=-1, keepdim=True)
        q = self.charge(torch.cat([self.element(species), radius], -1))
        return self.molecules(q, xyz, counts)

    @staticmethod
    def molecules(q, xyz, counts):
        moments = []
        for charge, place in zip(q.split(counts), xyz.split(counts)):
            neutral = charge - charge.mean()
            moments.append((neutral * place).sum(0).norm())
        return torch.stack(moments)


def main():
    torch.manual_seed(50)
    loader = torch.utils.data.DataLoader(invent_library(160), batch_size=8, collate_fn=collate)
    net = ChargeNet()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3, amsgrad=True)
    for number, (species, xyz, counts, dipole) in enumerate(loader, 1):
        loss = nn.functional.l1_loss(net(species, xyz, counts), dipole)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"batch {number:2d} mae {loss.item():.5f} D", flush=True)
    print("finite", int(all(p.isfinite().all() for p in net.parameters())))


if __name__ == "__main__":
    main()
