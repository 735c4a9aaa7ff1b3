"""How long do bags of a flight stay on the carousel?  A small mixture of experts (top-2, capacity limited, with the
load-balancing loss of Switch) over the bags of one flight at a time."""
import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Expert(nn.Sequential):
    def __init__(self, width, hidden):
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class CapacityMoE(nn.Module):
    def __init__(self, width, hidden, n_experts, top_k=2, capacity_factor=2.0):
        super().__init__()
        self.n_experts, self.top_k, self.capacity_factor = n_experts, top_k, capacity_factor
        self.router = nn.Linear(width, n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, hidden) for _ in range(n_experts))

    def forward(self, x):
        n = x.shape[0]
        probs = self.router(x).softmax(-1)
        top_p, top_i = probs.topk(self.top_k, dim=-1)
        capacity = math.ceil(self.capacity_factor * self.top_k * n / self.n_experts)

        # first choices are served before second choices, each expert takes `capacity` tokens
        choice = F.one_hot(top_i, self.n_experts)                       # n, k, e
        order = choice.transpose(0, 1).reshape(-1, self.n_experts).cumsum(0)
        place = order.view(self.top_k, n, self.n_experts).transpose(0, 1)
        room = ((place <= capacity) & (choice == 1)).any(-1)            # n, k

        kept = top_p * room
        gates = kept / kept.sum(-1, keepdim=True)

        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where((top_i == e) & room)
            if len(token):
                out = out.index_add(0, token, expert(x[token]) * gates[token, slot, None])
        dropped = (~room.any(-1)).sum().item()
        # tokens without a place are carried by the residual
        out = out + x * (1 - gates.sum(-1, keepdim=True))

        load = choice[:, 0].float().mean(0)
        balance = self.n_experts * (load * probs.mean(0)).sum()
        return out, balance, dropped


class Dwell(nn.Module):
    def __init__(self, features, width=32):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.norm = nn.LayerNorm(width)
        self.moe = CapacityMoE(width, 64, n_experts=8)
        self.head = nn.Linear(width, 1)

    def forward(self, bags):
        h = torch.tanh(self.stem(bags))
        mixed, balance, dropped = self.moe(self.norm(h))
        return self.head(h + mixed).squeeze(-1), balance, dropped


def flights(rng, count, features):
    """Line flights bring a mixture of bags. Now and then a charter lands: one party, one size of bag."""
    centres = rng.normal(size=(10, features)) * 1.5
    truth = rng.normal(size=features) / features ** 0.5
    for number in range(1, count + 1):
        n = 64
        if number > 12 and rng.random() < 0.07:
            bags = centres[rng.integers(10)] + 0.02 * rng.normal(size=(n, features))
        else:
            bags = centres[rng.integers(10, size=n)] + 0.8 * rng.normal(size=(n, features))
        minutes = np.log1p(np.exp(bags @ truth)) + 0.1 * rng.normal(size=n)
        yield number, torch.tensor(bags, dtype=torch.float32), torch.tensor(minutes, dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flights", type=int, default=60)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--balance", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Dwell(12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    for number, bags, minutes in flights(np.random.default_rng(args.seed), args.flights, 12):
        predicted, balance, dropped = model(bags)
        fit = F.smooth_l1_loss(predicted, minutes)
        loss = fit + args.balance * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"flight {number:3d}  loss {loss.item():.6f}  balance {balance.item():.5f}  dropped {dropped}", flush=True)
    print(f"weights {sum(p.abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
