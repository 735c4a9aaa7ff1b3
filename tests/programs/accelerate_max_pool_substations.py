"""Which substations trip? GraphSAGE with max pooling on sampled pieces of the grid."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class SageMax(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.pool = nn.Linear(d_in, d_in)
        self.update = nn.Linear(2 * d_in, d_out)

    def forward(self, h, edges):
        src, dst = edges
        msg = F.relu(self.pool(h))[src]
        best = h.new_full(h.shape, float("-inf"))
        best = best.scatter_reduce(0, dst[:, None].expand_as(msg), msg, reduce="amax")
        return self.update(torch.cat([h, best], dim=-1))


class GridNet(nn.Module):
    def __init__(self, d=7, hidden=16):
        super().__init__()
        self.first = SageMax(d, hidden)
        self.second = SageMax(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, h, edges):
        h = F.relu(self.first(h, edges))
        h = F.relu(self.second(h, edges))
        return self.out(h).squeeze(-1)


class GridSamples(Dataset):
    """random pieces of 30 buses: a ring, some shortcuts, lines out of service removed"""

    def __init__(self, n=24, buses=30, outages=3):
        self.items = []
        g = torch.Generator().manual_seed(13)
        for k in range(n):
            ring = torch.arange(buses)
            a = torch.cat([ring, torch.randint(0, buses, (10,), generator=g)])
            b = torch.cat([(ring + 1) % buses, torch.randint(0, buses, (10,), generator=g)])
            keep = torch.ones(len(a), dtype=torch.bool)
            keep[torch.randperm(buses, generator=g)[:outages]] = False
            a, b = a[keep], b[keep]
            x = torch.randn(buses, 7, generator=g)
            y = (x[:, 0] + 0.5 * x[:, 3] > 0.4).float()
            self.items.append((x, torch.stack([torch.cat([a, b]), torch.cat([b, a])]), y))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def main():
    set_seed(1)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = GridNet()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(GridSamples(), batch_size=None, shuffle=False)
    model, opt, loader = acc.prepare(model, opt, loader)
    for k, (x, edges, y) in enumerate(loader):
        with acc.accumulate(model):
            loss = F.binary_cross_entropy_with_logits(model(x, edges), y)
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
        acc.print(f"piece {k:2d} update {k // 2 + 1:2d} loss {loss.item():.4f}")
    acc.print(sum(p.detach().pow(2).sum() for p in model.parameters()).item())


main()
