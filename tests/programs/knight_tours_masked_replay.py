import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

# Deep Q-learning of knight's tours on a 5x5 board. Only jumps to squares that were not visited yet are legal.
# Tours are cut off at a number of jumps that grows with the rounds.

SIZE = 5
JUMPS = [(1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2), (-2, -1)]


class Board:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.seen = torch.zeros(SIZE, SIZE)
        self.at = (self.rng.randrange(SIZE), self.rng.randrange(SIZE))
        self.seen[self.at] = 1
        return self.view()

    def view(self):
        here = torch.zeros(SIZE, SIZE)
        here[self.at] = 1
        return torch.stack([self.seen.clone(), here])

    def legal(self):
        ok = torch.zeros(len(JUMPS), dtype=torch.bool)
        for k, (dy, dx) in enumerate(JUMPS):
            y, x = self.at[0] + dy, self.at[1] + dx
            ok[k] = 0 <= y < SIZE and 0 <= x < SIZE and self.seen[y, x] == 0
        return ok

    def jump(self, k):
        dy, dx = JUMPS[k]
        self.at = (self.at[0] + dy, self.at[1] + dx)
        self.seen[self.at] = 1
        stuck = not bool(self.legal().any())
        if stuck:
            reward = 5.0 if bool(self.seen.all()) else -1.0
        else:
            reward = 0.1
        return self.view(), reward, stuck


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 24, 3, padding=1)
        self.hidden = nn.Linear(24 * SIZE * SIZE, 64)
        self.value = nn.Linear(64, 1)
        self.advantage = nn.Linear(64, len(JUMPS))

    def forward(self, s):
        h = F.relu(self.conv(s)).flatten(1)
        h = F.relu(self.hidden(h))
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class Replay:
    def __init__(self, room, rng):
        self.items = deque(maxlen=room)
        self.rng = rng

    def push(self, *item):
        self.items.append(item)

    def sample(self, n):
        s, a, r, s2, legal2, done = zip(*self.rng.choices(self.items, k=n))
        return (torch.stack(s), torch.tensor(a), torch.tensor(r), torch.stack(s2), torch.stack(legal2),
                torch.tensor(done, dtype=torch.float32))


def choose(net, state, legal, eps, rng):
    if rng.random() < eps:
        return rng.choice(legal.nonzero().flatten().tolist())
    with torch.no_grad():
        q = net(state[None])[0]
    return int(q.masked_fill(~legal, float("-inf")).argmax())


def td_target(target_net, r, s2, legal2, done, gamma):
    with torch.no_grad():
        best = target_net(s2).masked_fill(~legal2, float("-inf")).max(dim=1).values
        return r + gamma * (1.0 - done) * best


def play(board, net, memory, jumps, eps, rng):
    s, total = board.reset(), 0.0
    for n in range(1, jumps + 1):
        legal = board.legal()
        a = choose(net, s, legal, eps, rng)
        s2, r, done = board.jump(a)
        memory.push(s, a, r, s2, board.legal(), done)
        s, total = s2, total + r
        if done:
            break
    return n, total


def main():
    torch.manual_seed(2)
    rng = random.Random(77)
    board, net, target_net = Board(rng), QNet(), QNet()
    target_net.load_state_dict(net.state_dict())
    memory = Replay(250, rng)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    bar = tqdm(range(1, 71), disable=None)
    for rnd in bar:
        eps = max(0.1, 1.0 - rnd / 50)
        jumps, ret = play(board, net, memory, 3 + rnd // 2, eps, rng)
        s, a, r, s2, legal2, done = memory.sample(64)
        target = td_target(target_net, r, s2, legal2, done, gamma=0.97)
        q = net(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, target)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if rnd % 10 == 0:
            target_net.load_state_dict(net.state_dict())
        print(f"tour {rnd:2d} jumps {jumps:2d} return {ret:+.2f} loss {loss.item():.7f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
