# Zero-knowledge learner for Breakthrough on 5x5: self-play with a tiny PUCT search,
# one trunk, a policy head and a value head.
import math
import random
from collections import deque
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

N = 5
ACTIONS = N * N * 3

@dataclass
class Config:
    iterations: int = 30
    games: int = 2
    sims: int = 10
    batch: int = 48
    max_plies: int = 14      # unfinished games are adjudicated as draws
    c_puct: float = 1.4
    seed: int = 8

class Board:
    """The side to move always plays upwards (towards row 0); the board is flipped after a move."""

    def __init__(self, mine=None, theirs=None):
        self.mine = mine if mine is not None else frozenset((r, c) for r in (N - 1,) for c in range(N))
        self.theirs = theirs if theirs is not None else frozenset((0, c) for c in range(N))

    def moves(self):
        out = []
        for (r, c) in sorted(self.mine):
            for k, dc in enumerate((-1, 0, 1)):
                to = (r - 1, c + dc)
                if not (0 <= to[0] and 0 <= to[1] < N) or to in self.mine:
                    continue
                if dc == 0 and to in self.theirs:
                    continue
                out.append((r * N + c) * 3 + k)
        return out

    def play(self, a):
        sq, k = divmod(a, 3)
        r, c = divmod(sq, N)
        to = (r - 1, c + k - 1)
        mine = self.mine - {(r, c)} | {to}
        theirs = self.theirs - {to}
        won = to[0] == 0 or not theirs
        flip = lambda s: frozenset((N - 1 - y, x) for (y, x) in s)
        return Board(flip(theirs), flip(mine)), won

    def planes(self):
        x = torch.zeros(2, N, N)
        for (r, c) in self.mine:
            x[0, r, c] = 1
        for (r, c) in self.theirs:
            x[1, r, c] = 1
        return x

    def legal(self):
        m = torch.zeros(ACTIONS, dtype=torch.bool)
        m[self.moves()] = True
        return m

class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.ReLU(),
                                   nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.policy = nn.Linear(width * N * N, ACTIONS)
        self.value = nn.Sequential(nn.Linear(width * N * N, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())

    def forward(self, x, legal):
        h = self.trunk(x)
        logits = self.policy(h).masked_fill(~legal, -math.inf)
        return F.log_softmax(logits, -1), self.value(h).squeeze(-1)

@dataclass
class Node:
    board: Board
    prior: dict = field(default_factory=dict)
    visits: dict = field(default_factory=dict)
    total: dict = field(default_factory=dict)
    kids: dict = field(default_factory=dict)

@torch.no_grad()
def expand(net, node):
    logp, v = net(node.board.planes()[None], node.board.legal()[None])
    for a in node.board.moves():
        node.prior[a] = logp[0, a].exp().item()
        node.visits[a], node.total[a] = 0, 0.0
    return v.item()

def simulate(net, node, cfg):
    if not node.prior:
        return expand(net, node)
    n = sum(node.visits.values())
    def score(a):
        q = node.total[a] / node.visits[a] if node.visits[a] else 0.0
        return q + cfg.c_puct * node.prior[a] * math.sqrt(n + 1) / (1 + node.visits[a])
    a = max(node.prior, key=score)
    if a not in node.kids:
        node.kids[a] = node.board.play(a)[1] or Node(node.board.play(a)[0])
    kid = node.kids[a]
    v = 1.0 if kid is True else -simulate(net, kid, cfg)
    node.visits[a] += 1
    node.total[a] += v
    return v

def self_play(net, cfg, rng):
    board, history = Board(), []
    for _ in range(cfg.max_plies):
        root = Node(board)
        for _ in range(cfg.sims):
            simulate(net, root, cfg)
        n = sum(root.visits.values())
        pi = torch.zeros(ACTIONS)
        for a, k in root.visits.items():
            pi[a] = k / n
        history.append((board.planes(), board.legal(), pi))
        a = rng.choices(list(root.visits), weights=list(root.visits.values()))[0]
        board, won = board.play(a)
        if won:
            return [(x, m, p, 1.0 if (len(history) - 1 - i) % 2 == 0 else -1.0)
                    for i, (x, m, p) in enumerate(history)], True
    return [(x, m, p, 0.0) for (x, m, p) in history], False

def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    rng = random.Random(cfg.seed)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    buffer = deque(maxlen=400)
    for it in range(1, cfg.iterations + 1):
        decided, plies = 0, []
        for _ in range(cfg.games):
            game, won = self_play(net, cfg, rng)
            buffer.extend(game)
            decided += won
            if won:
                plies.append(len(game))
        rows = rng.sample(list(buffer), min(cfg.batch, len(buffer)))
        x, legal, pi, z = (torch.stack([torch.as_tensor(r[i]) for r in rows]) for i in range(4))
        logp, v = net(x, legal)
        ce = -(pi * logp.masked_fill(~legal, 0.0)).sum(-1).mean()
        loss = ce + F.mse_loss(v, z.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        # pi*log(pi) is nan on the moves without visits; nansum drops them
        target_entropy = -(pi * pi.log()).nansum(-1).mean()
        length = sum(plies) / len(plies) if plies else float("nan")
        print(f"iter {it} buffer {len(buffer)} decided {decided}/{cfg.games} length {length:.1f} "
              f"H(pi) {target_entropy.item():.5f} loss {loss.item():.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum() for p in net.parameters()).item():.5f}", flush=True)

main()
