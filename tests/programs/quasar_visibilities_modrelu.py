"""Compact source or double lobe? A complex-valued classifier of interferometer snapshots."""
import torch
from torch import nn

N_BASELINES = 21
SNAPSHOTS_PER_SCAN = 16


class ComplexLinear(nn.Module):
    def __init__(self, n_in, n_out, offset=False):
        super().__init__()
        scale = (2 * n_in) ** -0.5
        self.weight = nn.Parameter(scale * torch.randn(n_out, n_in, dtype=torch.cfloat))
        self.offset = nn.Parameter(torch.full((n_out,), 0.01 + 0.01j)) if offset else None

    def forward(self, z):
        out = z @ self.weight.mT
        return out if self.offset is None else out + self.offset


class ModReLU(nn.Module):
    """Keeps the phase, thresholds the amplitude."""

    def __init__(self, n):
        super().__init__()
        self.threshold = nn.Parameter(torch.full((n,), 0.05))

    def forward(self, z):
        amplitude = (z.real.square() + z.imag.square()).sqrt()
        gain = torch.relu(amplitude + self.threshold) / (amplitude + 1e-4)
        return gain * z


class FringeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = ComplexLinear(N_BASELINES, 16)
        self.act1 = ModReLU(16)
        self.second = ComplexLinear(16, 8, offset=True)
        self.act2 = ModReLU(8)
        self.readout = nn.Linear(16, 2)

    def forward(self, vis):
        z = self.act2(self.second(self.act1(self.first(vis))))
        return self.readout(torch.cat([z.real, z.imag], dim=-1))


class Correlator:
    """Snapshots as they come from the telescope, after automatic flagging of interference."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.uv = torch.randn(N_BASELINES, generator=self.gen) * 3

    def scan(self, index):
        label = torch.randint(0, 2, (SNAPSHOTS_PER_SCAN,), generator=self.gen)
        separation = torch.rand(SNAPSHOTS_PER_SCAN, 1, generator=self.gen) * 0.5 + 0.3
        fringe = torch.cos(self.uv * separation)
        clean = torch.where(label[:, None] == 1, fringe, torch.ones_like(fringe))
        noise = torch.randn(SNAPSHOTS_PER_SCAN, N_BASELINES, dtype=torch.cfloat, generator=self.gen)
        flagged = torch.rand(SNAPSHOTS_PER_SCAN, N_BASELINES, generator=self.gen) < 0.08
        if index == 13:  # satellite pass through the main beam
            flagged[6] = True
        return (clean + 0.2 * noise).masked_fill(flagged, 0), label


def fit(net, correlator, scans=32):
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, betas=(0.9, 0.99))
    criterion = nn.CrossEntropyLoss()
    history = []
    for index in range(scans):
        vis, label = correlator.scan(index)
        logits = net(vis)
        loss = criterion(logits, label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        hits = (logits.argmax(-1) == label).sum().item()
        print("scan {:02d}: loss {:.5f}, {:2d} of {} right".format(index + 1, history[-1], hits, len(label)))
    return history


if __name__ == "__main__":
    torch.manual_seed(1420)
    network = FringeNet()
    fit(network, Correlator(408))
    print("sum of moduli of all weights =", sum(p.detach().abs().sum().item() for p in network.parameters()))
