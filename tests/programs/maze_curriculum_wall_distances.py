import random
from collections import deque

import torch
from torch import nn

LEVELS = {"open yard": (5, 0.10), "garden": (7, 0.22), "hedge": (9, 0.32), "cellar": (11, 0.38)}
PER_LEVEL = 9


def dig(side, walls, rnd):
    """one maze: wall map and, by breadth-first search, the way to the exit (inf in walls and where no way leads)"""
    wall = [[rnd.random() < walls for _ in range(side)] for _ in range(side)]
    goal = (rnd.randrange(side), rnd.randrange(side))
    wall[goal[0]][goal[1]] = False
    way = torch.full((side, side), float("inf"))
    way[goal] = 0
    queue = deque([goal])
    while queue:
        r, c = queue.popleft()
        for rr, cc in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
            if 0 <= rr < side and 0 <= cc < side and not wall[rr][cc] and torch.isinf(way[rr, cc]):
                way[rr, cc] = way[r, c] + 1
                queue.append((rr, cc))
    exit_map = torch.zeros(side, side)
    exit_map[goal] = 1
    return torch.stack([torch.tensor(wall).float(), exit_map]), way


def curriculum(rnd):
    for level, (side, walls) in LEVELS.items():
        for k in range(PER_LEVEL):
            mazes = [dig(side, walls, rnd) for _ in range(10)]
            yield level, k == 0, torch.stack([m for m, _ in mazes]), torch.stack([w for _, w in mazes])


class Planner(nn.Module):
    """a convolution that is repeated, as in value iteration, and a readout"""

    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(2, 10, 3, padding=1)
        self.sweep = nn.Conv2d(12, 10, 3, padding=1)
        self.read = nn.Conv2d(10, 1, 1)

    def forward(self, maze):
        h = torch.relu(self.enter(maze))
        for _ in range(maze.shape[-1]):
            h = torch.tanh(self.sweep(torch.cat([h, maze], 1)))
        return self.read(h).squeeze(1)


def fit():
    rnd = random.Random(10)
    torch.manual_seed(10)
    net = Planner()
    opt = None
    for n, (level, fresh, maze, way) in enumerate(curriculum(rnd), 1):
        if fresh:   # a new level: the readout starts again from nothing, with a new optimizer
            net.read = nn.Conv2d(10, 1, 1)
            nn.init.zeros_(net.read.weight)
            opt = torch.optim.Adam(net.parameters(), lr=0.015)
        error = torch.where(torch.isinf(way), 0.0, net(maze) - way.where(way.isfinite(), torch.tensor(0.0)))
        loss = (error / maze.shape[-1]).square().sum() / way.isfinite().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{n:2d} {level:9s} furthest {way.max().item():.0f} mean {way.mean().item():.1f} loss {loss.item():.3f}")
    print("planner, squared:", f"{sum(p.detach().square().sum().item() for p in net.parameters()):.5f}")


fit()
