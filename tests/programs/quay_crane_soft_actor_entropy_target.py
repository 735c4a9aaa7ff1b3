"""Soft actor-critic for the trolley of a quay crane: bring the load over the hatch without sway."""
import random

import torch
import torch.nn as nn

random.seed(11)
torch.manual_seed(11)

DT, ROPE, GAMMA, TAU = 0.2, 9.0, 0.97, 0.05
ROUNDS = 34


def crane(state, lever):
    x, v, sway, rate = state.unbind(-1)
    acc = 1.2 * lever.squeeze(-1)
    rate = rate + DT * (-9.81 / ROPE * torch.sin(sway) - acc / ROPE * torch.cos(sway) - 0.05 * rate)
    sway = sway + DT * rate
    v = (v + DT * acc).clamp(-3, 3)
    x = (x + DT * v).clamp(-10, 10)
    nxt = torch.stack([x, v, sway, rate], -1)
    reward = -(0.02 * x ** 2 + 0.5 * sway ** 2 + 0.01 * lever.squeeze(-1) ** 2)
    return nxt, reward


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 24), nn.SiLU(), nn.Linear(24, o))


class Driver(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(4, 2)

    def forward(self, s):
        mean, spread = self.body(s).chunk(2, -1)
        spread = spread.clamp(-4, 1)
        noise = torch.randn_like(mean)
        raw = mean + spread.exp() * noise
        lever = torch.tanh(raw)
        logp = -0.5 * noise ** 2 - spread - 0.919
        logp = logp - 2 * (0.6931 - raw - nn.functional.softplus(-2 * raw))
        return lever, logp.squeeze(-1)


def wanted_entropy(k):
    # the hand on the lever gets calmer: entropy of a uniform lever between -width and width
    width = torch.tensor(1.0 - k / 23).clamp(min=0.0)
    return torch.log(2 * width)


driver = Driver()
critics = nn.ModuleList([mlp(5, 1), mlp(5, 1)])
slow = nn.ModuleList([mlp(5, 1), mlp(5, 1)])
slow.load_state_dict(critics.state_dict())
log_alpha = nn.Parameter(torch.tensor(-1.5))
opt_driver = torch.optim.Adam(driver.parameters(), lr=3e-3)
opt_critics = torch.optim.Adam(critics.parameters(), lr=5e-3)
opt_alpha = torch.optim.Adam([log_alpha], lr=2e-2)

yard = torch.randn(12, 4) * torch.tensor([4.0, 0.5, 0.1, 0.05])
memory = []

for k in range(1, ROUNDS + 1):
    for _ in range(3):
        with torch.no_grad():
            lever, _lp = driver(yard)
            nxt, reward = crane(yard, lever)
        memory.extend(zip(yard, lever, reward, nxt))
        yard = nxt
    s, a, r, s2 = (torch.stack(c) for c in zip(*random.sample(memory, 32)))

    with torch.no_grad():
        a2, lp2 = driver(s2)
        pair = torch.cat([s2, a2], -1)
        future = torch.minimum(slow[0](pair), slow[1](pair)).squeeze(-1) - log_alpha.exp() * lp2
        goal = r + GAMMA * future
    now = torch.cat([s, a], -1)
    critic_loss = sum(((q(now).squeeze(-1) - goal) ** 2).mean() for q in critics)
    opt_critics.zero_grad()
    critic_loss.backward()
    opt_critics.step()

    a_new, lp = driver(s)
    pair = torch.cat([s, a_new], -1)
    worth = torch.minimum(critics[0](pair), critics[1](pair)).squeeze(-1)
    driver_loss = (log_alpha.exp().detach() * lp - worth).mean()
    opt_driver.zero_grad()
    driver_loss.backward()
    opt_driver.step()

    alpha_loss = -(log_alpha.exp() * (lp.detach() + wanted_entropy(k))).mean()
    opt_alpha.zero_grad()
    alpha_loss.backward()
    opt_alpha.step()

    with torch.no_grad():
        for fast, old in zip(critics.parameters(), slow.parameters()):
            old.lerp_(fast, TAU)
    print(f"round {k:2d} critic {critic_loss.item():.4f} driver {driver_loss.item():.4f} alpha {alpha_loss.item():.4f}")

everything = [*driver.parameters(), *critics.parameters(), log_alpha]
print("sum of absolute weights", round(sum(p.detach().abs().sum().item() for p in everything), 4))
