"""Voltage estimation on snapshots of a distribution grid, with learned spectral positions of the buses."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Snapshot:
    edge_index: torch.Tensor      # [2, E]
    edge_attr: torch.Tensor       # [E, 3]: length, cross-section, closed?
    load: torch.Tensor            # [N, 2]
    voltage: torch.Tensor         # [N]


N_BUS = 14


def ring_with_spurs():
    e = [(i, (i + 1) % 9) for i in range(9)]
    e += [(0, 9), (2, 10), (4, 11), (6, 12), (8, 13), (1, 5), (3, 7)]
    return torch.tensor(e).T


def make_snapshots(n):
    g = torch.Generator().manual_seed(64)
    edges = ring_with_spurs()
    fixed = torch.rand(edges.shape[1], 2, generator=g) + 0.3
    out = []
    for i in range(n):
        closed = torch.ones(edges.shape[1])
        if i % 3 == 1:
            closed[int(torch.randint(0, 9, (1,), generator=g))] = 0.0      # the ring is opened somewhere
        if i == 20:
            closed[[10, 12]] = 0.0                                         # two spurs are being serviced
        load = torch.rand(N_BUS, 2, generator=g)
        lap = torch.zeros(N_BUS, N_BUS)
        y = closed * fixed[:, 1] / fixed[:, 0]
        for (a, b), w in zip(edges.T.tolist(), y):
            lap[a, a] += w; lap[b, b] += w; lap[a, b] -= w; lap[b, a] -= w
        drop = torch.linalg.solve(lap + 0.5 * torch.eye(N_BUS), load.sum(1))
        out.append(Snapshot(edges, torch.cat([fixed, closed[:, None]], 1), load, 1.05 - 0.04 * drop))
    return out


class SpectralPositions(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.k = k
        self.admittance = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1), nn.Softplus())

    def forward(self, snap):
        w = self.admittance(snap.edge_attr[:, :2]).squeeze(1) * snap.edge_attr[:, 2]
        a, b = snap.edge_index
        adj = torch.zeros(N_BUS, N_BUS).index_put((a, b), w)
        adj = adj + adj.T
        lap = torch.diag(adj.sum(1)) - adj
        freq, modes = torch.linalg.eigh(lap)
        return modes[:, 1:self.k + 1] ** 2, freq[1:self.k + 1]


class VoltageNet(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.positions = SpectralPositions(k)
        self.mlp = nn.Sequential(nn.Linear(2 + 2 * k, 24), nn.ELU(), nn.Linear(24, 1))

    def forward(self, snap):
        where, freq = self.positions(snap)
        feats = torch.cat([snap.load, where, freq.expand(N_BUS, -1)], dim=1)
        return 1.0 + 0.1 * self.mlp(feats).squeeze(1)


class Estimator:
    def __init__(self, lr=5e-3):
        torch.manual_seed(8)
        self.net = VoltageNet()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)

    def fit(self, snapshots):
        for number, snap in enumerate(snapshots, 1):
            self.opt.zero_grad()
            try:
                estimate = self.net(snap)
            except torch.linalg.LinAlgError:
                print(f"snapshot {number:02d}  spectrum did not converge, left out")
                continue
            loss = 1e3 * torch.mean((estimate - snap.voltage) ** 2)
            loss.backward()
            self.opt.step()
            print(f"snapshot {number:02d}  loss {loss.item():.6f}")
        return self


if __name__ == "__main__":
    est = Estimator().fit(make_snapshots(36))
    print("abs sum of weights", sum(p.abs().sum().item() for p in est.net.parameters()))
