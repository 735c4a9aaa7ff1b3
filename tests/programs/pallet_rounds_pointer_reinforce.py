"""Van rounds for pallet deliveries. Pointer network, REINFORCE with a running baseline (Nazari et al. 2018)."""
import math

import torch
from torch import nn

CAPACITY = 40.0
STOPS = 8


class OrderBook:
    """Each morning's orders: positions in the district, pallets weights in units of 100 kg (log-normal, as measured)."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def morning(self, vans):
        xy = torch.rand(vans, STOPS + 1, 2, generator=self.g)
        load = torch.exp(1.6 + 0.62 * torch.randn(vans, STOPS + 1, generator=self.g)).ceil()
        load[:, 0] = 0.0                                    # the depot
        return xy, load


class Pointer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.v = nn.Parameter(torch.randn(d) / math.sqrt(d))

    def forward(self, state, nodes, mask):
        u = torch.tanh(self.q(state).unsqueeze(1) + self.k(nodes)) @ self.v
        u = (8 * torch.tanh(u)).masked_fill(mask, float("-inf"))
        return torch.softmax(u, -1)


class Dispatcher(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.cell = nn.GRUCell(d + 1, d)
        self.pointer = Pointer(d)
        self.start = nn.Parameter(torch.zeros(d))

    def forward(self, xy, load):
        b = len(xy)
        nodes = self.embed(torch.cat([xy, load.unsqueeze(-1) / CAPACITY], -1))
        h = self.start.expand(b, -1)
        at = torch.zeros(b, dtype=torch.long)
        room = torch.full((b,), CAPACITY)
        left = load.clone()
        rows = torch.arange(b)
        logp, length = torch.zeros(b), torch.zeros(b)
        while (left > 0).any():
            done = (left == 0).all(1)
            h = self.cell(torch.cat([nodes[rows, at], room.unsqueeze(1) / CAPACITY], 1), h)
            mask = (left == 0) | (left > room.unsqueeze(1))     # delivered, or does not fit any more
            mask[:, 0] = (at == 0) & ~done                      # never from the depot to the depot
            probs = self.pointer(h, nodes, mask)
            nxt = torch.multinomial(probs, 1).squeeze(1)
            logp = logp + torch.log(probs[rows, nxt])
            length = length + (xy[rows, at] - xy[rows, nxt]).norm(dim=-1)
            room = torch.where(nxt == 0, torch.full_like(room, CAPACITY), room - left[rows, nxt])
            left = left.clone()
            left[rows, nxt] = 0.0
            at = nxt
        return logp, length + (xy[rows, at] - xy[:, 0]).norm(dim=-1)


def main():
    torch.manual_seed(2)
    book, policy = OrderBook(14), Dispatcher()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    baseline = None
    for step in range(1, 61):
        xy, load = book.morning(vans=16)
        logp, length = policy(xy, load)
        with torch.no_grad():
            baseline = length.mean() if baseline is None else 0.8 * baseline + 0.2 * length.mean()
            advantage = length - baseline
        loss = (advantage * logp).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 2.0)
        opt.step()
        print(f"morning {step} km {length.mean().item():.5f} loss {loss.item():.6f} heaviest {load.max().item():.0f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in policy.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
