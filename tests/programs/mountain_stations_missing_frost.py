"""Night minimum temperatures of a mountain network: graph convolution in space, GRU in time. Stations go missing (NaN)."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STATIONS, HISTORY = 15, 10


def network(seed):
    rng = np.random.default_rng(seed)
    xy, height = rng.uniform(0, 60, (STATIONS, 2)), rng.uniform(400, 3200, STATIONS)
    dist = np.sqrt(((xy[:, None] - xy[None]) ** 2).sum(-1))
    blocked = np.abs(height[:, None] - height[None]) > 1200      # a ridge between: no exchange of cold air
    dist[blocked] = np.inf
    dist[9, :] = dist[:, 9] = np.inf                              # the summit stands alone
    np.fill_diagonal(dist, np.inf)
    return xy, height, torch.tensor(np.exp(-(dist / 25) ** 2), dtype=torch.float32)


class Nights(Dataset):
    def __init__(self, height, nights, seed):
        rng = np.random.default_rng(seed)
        season = -8 * np.cos(2 * np.pi * np.arange(nights) / 120)
        temp = season[:, None] - 6.5e-3 * height[None] + 10 + 1.5 * rng.standard_normal((nights, STATIONS))
        temp[rng.random(temp.shape) < 0.2] = np.nan
        temp[30:34, :] = np.nan                                   # the modem of the whole network was down
        temp[60:75, 4] = np.nan
        self.t = torch.tensor(temp, dtype=torch.float32)

    def __len__(self):
        return len(self.t) - HISTORY

    def __getitem__(self, i):
        return self.t[i:i + HISTORY], self.t[i + HISTORY]


class ObservedMSE(torch.autograd.Function):
    """Mean squared error over what was observed. The backward never touches the NaN."""

    @staticmethod
    def forward(ctx, pred, target):
        diff = pred - target
        seen = ~torch.isnan(diff)
        ctx.save_for_backward(diff, seen)
        return diff.square().nansum() / seen.sum()

    @staticmethod
    def backward(ctx, grad):
        diff, seen = ctx.saved_tensors
        return torch.where(seen, 2 * diff / seen.sum(), 0.0) * grad, None


class GraphGRU(nn.Module):
    def __init__(self, adjacency, d=24):
        super().__init__()
        scale = adjacency.sum(1).pow(-0.5)
        scale[torch.isinf(scale)] = 0.0                           # alone: no messages
        self.register_buffer("a", scale[:, None] * adjacency * scale[None])
        self.self_loop, self.neighbour = nn.Linear(2, d), nn.Linear(2, d, bias=False)
        self.gru, self.out = nn.GRU(d, d, batch_first=True), nn.Linear(d, 1)
        self.place = nn.Parameter(torch.zeros(STATIONS, d))

    def forward(self, x):
        seen = ~torch.isnan(x)
        x = torch.stack([torch.where(seen, x, torch.zeros(())) / 10, seen.float()], -1)
        h = torch.relu(self.self_loop(x) + self.neighbour(torch.einsum("ij,btjc->btic", self.a, x)) + self.place)
        b, t, n, d = h.shape
        last = self.gru(h.transpose(1, 2).reshape(b * n, t, d))[0][:, -1]
        return self.out(last).view(b, n) * 10


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--batch", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(33)
    xy, height, adjacency = network(33)
    loader = DataLoader(Nights(height, 110, 34), batch_size=args.batch, num_workers=1, shuffle=False)
    model = GraphGRU(adjacency)
    opt = torch.optim.RMSprop(model.parameters(), lr=args.lr)
    errors = [[] for _ in range(STATIONS)]
    for night, (past, target) in enumerate(loader, 1):
        pred = model(past)
        loss = ObservedMSE.apply(pred, target)
        if torch.isnan(loss):                                     # nothing was measured in these nights
            print(f"night pair {night:2d} no observation", flush=True)
            continue
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        mae = (pred.detach() - target).abs()
        for s in range(STATIONS):
            errors[s].append(mae[:, s].mean().item())
        print(f"night pair {night:2d} loss {loss.item():.6f} mae {mae.mean().item():.4f} observed {int((~target.isnan()).sum())}", flush=True)
    print("per station " + " ".join(f"{np.mean(e):.3f}" for e in errors), flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
