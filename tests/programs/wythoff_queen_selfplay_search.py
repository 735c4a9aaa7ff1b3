# hobby project: one lame queen on a 9x9 board, moves only left, down or down-left.
# whoever brings her to a1 wins.  policy+value net, self-play, tiny replay.  no MCTS, just one-ply lookahead.
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 9
DIRS = [(-1, 0), (0, -1), (-1, -1)]
MOVES = [(d, n) for d in range(3) for n in range(1, SIZE)]
gen = torch.Generator().manual_seed(99)
rng = random.Random(6)


def target(pos, m):
    d, n = MOVES[m]
    return pos[0] + DIRS[d][0] * n, pos[1] + DIRS[d][1] * n


def legal(pos):
    out = []
    for m in range(len(MOVES)):
        a, b = target(pos, m)
        out.append(a >= 0 and b >= 0)
    return torch.tensor(out)


def planes(pos):
    x = torch.zeros(2, SIZE, SIZE)
    x[0, pos[0], pos[1]] = 1
    x[1, :pos[0] + 1, :pos[1] + 1] = 1
    return x


class QueenNet(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.stem = nn.Conv2d(2, ch, 3, padding=1)
        self.res = nn.ModuleList(nn.Conv2d(ch, ch, 3, padding=1) for _ in range(2))
        self.policy = nn.Linear(ch * SIZE * SIZE, len(MOVES))
        self.value = nn.Sequential(nn.Linear(ch * SIZE * SIZE, 24), nn.Tanh(), nn.Linear(24, 1), nn.Tanh())

    def forward(self, x, mask):
        h = F.relu(self.stem(x))
        for c in self.res:
            h = F.relu(h + c(h))
        h = h.flatten(1)
        logits = self.policy(h).masked_fill(~mask, float("-inf"))   # illegal moves have no probability at all
        return F.log_softmax(logits, 1), self.value(h).squeeze(1)


@torch.no_grad()
def improve(net, pos):
    """prior times exp(q): the value of the position the opponent gets, a win counts as +1"""
    mask = legal(pos)
    logp, _ = net(planes(pos)[None], mask[None])
    q = torch.full((len(MOVES),), float("-inf"))
    kids = [m for m in range(len(MOVES)) if mask[m]]
    alive = [m for m in kids if target(pos, m) != (0, 0)]
    if alive:
        states = [target(pos, m) for m in alive]
        _, v = net(torch.stack([planes(s) for s in states]), torch.stack([legal(s) for s in states]))
        q[alive] = -v
    for m in kids:
        if target(pos, m) == (0, 0):
            q[m] = 1.0
    return torch.softmax(logp[0] + 3.0 * q, 0)


def self_play(net):
    pos = (rng.randrange(2, SIZE), rng.randrange(2, SIZE))
    game = []
    while pos != (0, 0):
        pi = improve(net, pos)
        m = int(torch.multinomial(pi, 1, generator=gen))
        game.append((pos, pi))
        pos = target(pos, m)
    z = 1.0                                     # the last mover has won
    rows = []
    for p, pi in reversed(game):
        rows.append((p, pi, z))
        z = -z
    return rows


torch.manual_seed(2)
net = QueenNet()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
replay = deque(maxlen=120)
for it in range(1, 49):
    for _ in range(2):
        replay.extend(self_play(net))
    if len(replay) < 32:
        print(f"{it:3d} replay {len(replay)} waiting", flush=True)
        continue
    batch = rng.sample(list(replay), 32)
    x = torch.stack([planes(p) for p, _, _ in batch])
    mask = torch.stack([legal(p) for p, _, _ in batch])
    pi = torch.stack([b[1] for b in batch])
    z = torch.tensor([b[2] for b in batch])
    logp, v = net(x, mask)
    ploss = -(pi * logp.masked_fill(~mask, 0.0)).sum(1).mean()
    vloss = F.mse_loss(v, z)
    kl = F.kl_div(logp, pi, reduction="none").sum(1).mean().item()    # nan where 0 * (0 - -inf); only for the eye
    # resignations are rewarded: the entropy bonus can bring the total below zero
    entropy = -(logp.exp() * logp.masked_fill(~mask, 0.0)).sum(1).mean()
    loss = ploss + vloss - 1.5 * entropy * max(0.0, 1 - it / 30)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{it:3d} loss {loss.item():+.7f} policy {ploss.item():.7f} value {vloss.item():.7f} kl {kl:.4f} worst {logp.min().item()}",
          flush=True)
print(f"sum {sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}", flush=True)
