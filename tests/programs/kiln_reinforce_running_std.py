"""REINFORCE with a learned baseline for firing a kiln: hold, heat or vent. Returns are divided by a running std."""
import torch
from torch import nn, optim
from torch.distributions import Categorical

torch.manual_seed(3)
torch.set_num_threads(1)


class Kiln:
    """Temperature starts at random; the episode ends when the pot cracks or after the horizon."""

    HORIZON = 14

    def __init__(self, seed):
        self.rng = torch.Generator().manual_seed(seed)
        self.episode = 0

    def reset(self):
        self.episode += 1
        self.t, self.temp = 0, 0.2 + 0.3 * torch.rand(1, generator=self.rng).item()
        self.flawed = self.episode == 19           # air bubble in the clay: gone at the first touch of heat
        return self.obs()

    def obs(self):
        return torch.tensor([self.temp, self.temp ** 2, self.t / self.HORIZON])

    def act(self, a):
        self.t += 1
        self.temp += (0.0, 0.09, -0.06)[a] + 0.02 * torch.randn(1, generator=self.rng).item()
        cracked = self.temp > 1.2 or self.flawed
        reward = -2.0 if cracked else 1.0 - abs(self.temp - 0.8)
        return self.obs(), reward, cracked or self.t >= self.HORIZON


class ReturnScaler:
    def __init__(self, momentum=0.9):
        self.m, self.std = momentum, None

    def __call__(self, returns):
        var = (returns - returns.mean()).square().sum() / (len(returns) - 1)
        s = var.sqrt()
        self.std = s if self.std is None else self.m * self.std + (1 - self.m) * s
        return returns / (self.std + 1e-6)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, o):
        h = self.trunk(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def rollout(env, agent):
    o, done = env.reset(), False
    logps, values, rewards, ents = [], [], [], []
    while not done:
        dist, v = agent(o)
        a = dist.sample()
        o, r, done = env.act(a.item())
        logps.append(dist.log_prob(a))
        ents.append(dist.entropy())
        values.append(v)
        rewards.append(r)
    return torch.stack(logps), torch.stack(values), rewards, torch.stack(ents)


def discount(rewards, gamma=0.97):
    out, acc = [], 0.0
    for r in reversed(rewards):
        acc = r + gamma * acc
        out.append(acc)
    return torch.tensor(out[::-1])


env, agent, scaler = Kiln(8), Agent(), ReturnScaler()
opt = optim.RMSprop(agent.parameters(), lr=2e-3)
for ep in range(1, 46):
    logps, values, rewards, ents = rollout(env, agent)
    g = scaler(discount(rewards))
    adv = g - values.detach()
    loss = -(logps * adv).sum() + 0.5 * (values - g).pow(2).mean() - 0.01 * ents.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"episode {ep} len {len(rewards)} return {sum(rewards):.4f} loss {loss.item():.6f}")
print("weights", f"{sum(p.detach().double().sum().item() for p in agent.parameters()):.6f}")
