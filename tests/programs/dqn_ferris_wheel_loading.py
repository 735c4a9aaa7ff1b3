"""A DQN loads a ferris wheel: gondolas must be filled, and only a gondola with room can be chosen.

Choices that are not possible have the value -inf; when the wheel is full no choice is left at all and the best value of the
next state is -inf, which `torch.where` takes out at the end of an episode.
"""
import argparse
import copy
import random
from collections import deque, namedtuple

import torch
from torch import nn

Move = namedtuple("Move", "state action reward after done allowed_after")


class Wheel:
    """`n` gondolas of two places; the imbalance of the wheel costs."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng

    def reset(self):
        self.load = [0] * self.n
        self.party = self.rng.choice([1, 2])
        return self.observe()

    def observe(self):
        return torch.tensor([x / 2 for x in self.load] + [self.party / 2])

    def allowed(self):
        return torch.tensor([x + self.party <= 2 for x in self.load])

    def step(self, a):
        self.load[a] += self.party
        imbalance = sum(abs(self.load[i] - self.load[(i + self.n // 2) % self.n]) for i in range(self.n // 2))
        reward = self.party - 0.6 * imbalance
        self.party = self.rng.choice([1, 2])
        done = not bool(self.allowed().any())
        return self.observe(), reward, done


class Dueling(nn.Module):
    def __init__(self, n, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n + 1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, n)

    def forward(self, x):
        h = self.body(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


def masked(q, allowed):
    return q.masked_fill(~allowed, float("-inf"))


class Agent:
    def __init__(self, args, rng):
        self.online = Dueling(args.gondolas, args.width)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.opt = torch.optim.RMSprop(self.online.parameters(), lr=args.lr)
        self.memory = deque(maxlen=2000)
        self.rng, self.args = rng, args

    @torch.no_grad()
    def choose(self, state, allowed, eps):
        if self.rng.random() < eps:
            return self.rng.choice([i for i, ok in enumerate(allowed.tolist()) if ok])
        return int(masked(self.online(state), allowed).argmax())

    def learn(self):
        batch = Move(*zip(*self.rng.sample(list(self.memory), self.args.batch)))
        states, after, allowed = torch.stack(batch.state), torch.stack(batch.after), torch.stack(batch.allowed_after)
        reward, done = torch.tensor(batch.reward), torch.tensor(batch.done)
        q = self.online(states).gather(1, torch.tensor(batch.action)[:, None])[:, 0]
        with torch.no_grad():
            best = masked(self.target(after), allowed).max(1).values
            goal = torch.where(done, reward, reward + self.args.gamma * best)
        loss = nn.functional.smooth_l1_loss(q, goal)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 5.0)
        self.opt.step()
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    for name, kind, default in [("gondolas", int, 8), ("width", int, 48), ("lr", float, 2e-3), ("gamma", float, 0.95),
                                ("batch", int, 32), ("episodes", int, 56), ("fill", int, 60), ("sync", int, 8)]:
        ap.add_argument("--" + name, type=kind, default=default)
    args = ap.parse_args()
    torch.manual_seed(2)
    rng = random.Random(2)
    wheel, agent = Wheel(args.gondolas, rng), Agent(args, rng)
    updates = 0
    for episode in range(1, args.episodes + 1):
        state, done, total = wheel.reset(), False, 0.0
        while not done:
            a = agent.choose(state, wheel.allowed(), eps=max(0.1, 1 - episode / 30))
            after, reward, done = wheel.step(a)
            agent.memory.append(Move(state, a, reward, after, done, wheel.allowed()))
            state, total = after, total + reward
        if len(agent.memory) < args.fill:
            print(f"episode {episode} return {total:.2f} filling", flush=True)
            continue
        loss = agent.learn()
        updates += 1
        if updates % args.sync == 0:
            agent.target.load_state_dict(agent.online.state_dict())
        print(f"episode {episode} return {total:.2f} td {loss:.6f}", flush=True)
    print(f"updates {updates} weights {sum(p.abs().sum().item() for p in agent.online.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
