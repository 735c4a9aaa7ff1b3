# dispatching two cars in a six-storey house: which car answers the oldest call?
# action 0/1 = send that car, 2 = let the call wait. A car that is loading cannot be sent.
import random
import torch
import torch.nn as nn
from torch.distributions import Categorical

FLOORS, CARS, ITERS = 6, 2, 34
INF = float("inf")
rnd = random.Random(12)
torch.manual_seed(12)


class House:
    def __init__(self):
        self.cars = [0, 3]
        self.busy = [0, 0]
        self.calls = []
        self.clock = 0

    def observe(self):
        floor, since = self.calls[0] if self.calls else (None, None)
        gap = [abs(c - floor) if floor is not None and b == 0 else INF for c, b in zip(self.cars, self.busy)]
        age = self.clock - since if since is not None else INF
        pos = [c / FLOORS for c in self.cars]
        near = [1.0 / (1.0 + g) for g in gap]             # nothing to do, or not free: infinitely far, hence 0
        return torch.tensor(pos + near + [1.0 / (1.0 + age), len(self.calls) / 5.0])

    def legal(self):
        here = bool(self.calls)
        return torch.tensor([here and self.busy[0] == 0, here and self.busy[1] == 0, True])

    def play(self, action):
        cost = 0.0
        if action < CARS:
            floor, since = self.calls.pop(0)
            way = abs(self.cars[action] - floor)
            cost += (way + self.clock - since) / 5.0
            self.cars[action], self.busy[action] = floor, way + 1
        self.clock += 1
        self.busy = [max(b - 1, 0) for b in self.busy]
        cost += 0.05 * len(self.calls)
        if rnd.random() < 0.55 and len(self.calls) < 5:
            self.calls.append((rnd.randrange(FLOORS), self.clock))
        return -cost


actor = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))
critic = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
actor_opt = torch.optim.RMSprop(actor.parameters(), lr=3e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
WARM = 6                                                   # the critic learns alone at first

for it in range(ITERS):
    house, obs, legal, acts, rewards = House(), [], [], [], []
    night = it in (9, 22)                                  # nobody calls: only waiting is legal
    for _ in range(25):
        if night:
            house.calls.clear()
        o, ok = house.observe(), house.legal()
        with torch.no_grad():
            a = Categorical(logits=actor(o).masked_fill(~ok, -INF)).sample().item()
        obs.append(o), legal.append(ok), acts.append(a), rewards.append(house.play(a))
    obs, legal, acts = torch.stack(obs), torch.stack(legal), torch.tensor(acts)
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + 0.9 * g
        returns.insert(0, g)
    returns = torch.tensor(returns)
    value = critic(obs).squeeze(1)
    critic_loss = (value - returns).square().mean()
    critic_opt.zero_grad()
    critic_loss.backward()
    critic_opt.step()
    line = f"iter {it + 1:2d} return {sum(rewards):8.3f} critic {critic_loss.item():8.4f}"
    if it >= WARM:
        policy = Categorical(logits=actor(obs).masked_fill(~legal, -INF))
        adv = (returns - value).detach()
        actor_loss = -(policy.log_prob(acts) * adv).mean() - 0.01 * policy.entropy().mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()
        line += f" actor {actor_loss.item():8.4f}"
    print(line)

print("total of squared weights", sum(p.detach().square().sum().item() for m in (actor, critic) for p in m.parameters()))
