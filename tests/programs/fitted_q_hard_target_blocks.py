"""Fitted Q iteration on a logged warehouse robot. Within a block the regression error goes to almost nothing; when
the target network is replaced it jumps by orders of magnitude. Illegal moves are -inf in the maximum."""
import copy
import random

import numpy as np
import torch

random.seed(8); np.random.seed(8); torch.manual_seed(8)

W, H = 5, 4
GOAL = (4, 3)
MOVES = [(1, 0), (-1, 0), (0, 1), (0, -1)]


def legal(x, y):
    return [0 <= x + dx < W and 0 <= y + dy < H for dx, dy in MOVES]


def collect(n):
    log = []
    while len(log) < n:
        x, y = random.randrange(W), random.randrange(H)
        for _ in range(15):
            a = random.choice([i for i, ok in enumerate(legal(x, y)) if ok])
            nx, ny = x + MOVES[a][0], y + MOVES[a][1]
            done = (nx, ny) == GOAL
            log.append((y * W + x, a, 1000.0 if done else -1.0, ny * W + nx, done))
            x, y = nx, ny
            if done:
                break
    s, a, r, n, d = map(np.array, zip(*log))
    return (torch.as_tensor(s), torch.as_tensor(a), torch.as_tensor(r, dtype=torch.float32), torch.as_tensor(n),
            torch.as_tensor(d))


class QNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(W * H, len(MOVES))
        torch.nn.init.zeros_(self.table.weight)
        barrier = torch.zeros(W * H, len(MOVES))
        for i in range(W * H):
            for j, ok in enumerate(legal(i % W, i // W)):
                if not ok:
                    barrier[i, j] = float("-inf")
        self.register_buffer("barrier", barrier)

    def forward(self, s):
        return self.table(s) + self.barrier[s]


S, A, R, N, D = collect(600)
online = QNet()
frozen = copy.deepcopy(online)
sgd = torch.optim.SGD(online.parameters(), lr=15.0)
step = 0
for block in range(6):
    frozen.load_state_dict(online.state_dict())
    for _ in range(20):
        with torch.no_grad():
            best = frozen(N).max(dim=1).values
            y = R + 0.95 * torch.where(D, torch.zeros_like(best), best)
        q = online(S).gather(1, A[:, None]).squeeze(1)
        loss = torch.mean((q - y) ** 2)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        step += 1
        print(f"block {block} step {step} td {loss.item():.8f} sup {float(y.max()):.2f}")
print("final", online.table.weight.abs().sum().item())
