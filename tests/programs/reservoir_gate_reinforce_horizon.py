"""A gate keeper of a reservoir learns by REINFORCE with a baseline; the season it plays grows from update to update."""
import torch
from torch import nn
from torch.distributions import Categorical

UPDATES = 40
RESERVOIRS = 16
GAMMA = 0.8          # days: what happens in a fortnight hardly matters


class Keeper(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh())
        self.gate = nn.Linear(width, 3)       # close, half, open
        self.value = nn.Linear(width, 1)

    def forward(self, seen):
        h = self.body(seen)
        return self.gate(h), self.value(h).squeeze(-1)


class Valley:
    """Rain with a memory fills the reservoir, the gate empties it; a level of one half is wanted."""

    flows = torch.tensor([0.0, 0.05, 0.12])

    def __init__(self, n, generator):
        self.n, self.generator = n, generator

    def reset(self):
        self.level = torch.rand(self.n, generator=self.generator)
        self.rain = torch.rand(self.n, generator=self.generator) * 0.05
        return self.see()

    def see(self):
        return torch.stack([self.level * 2 - 1, (self.level - 0.5).abs(), self.rain * 20 - 1], 1)

    def step(self, gate):
        self.rain = 0.9 * self.rain + 0.1 * 0.1 * torch.rand(self.n, generator=self.generator)
        self.level = (self.level + self.rain - self.flows[gate]).clamp(0, 1)
        flood = (self.level > 0.95).float()
        return self.see(), 1 - 4 * (self.level - 0.5).abs() - flood


def play(keeper, valley, days, generator):
    seen = valley.reset()
    states, gates, rewards = [], [], []
    with torch.no_grad():
        for _ in range(days):
            logits, _ = keeper(seen)
            noise = torch.rand(logits.shape, generator=generator).clamp(1e-6, 1 - 1e-6)
            gate = (logits - (-noise.log()).log()).argmax(-1)      # a Gumbel draw
            states.append(seen)
            gates.append(gate)
            seen, reward = valley.step(gate)
            rewards.append(reward)
    return torch.stack(states), torch.stack(gates), torch.stack(rewards)


def discounted(rewards):
    """sum over later days of gamma^(u - t) r_u, for all t at once"""
    powers = GAMMA ** torch.arange(len(rewards), dtype=torch.float32)[:, None]
    weighted = rewards * powers
    later = weighted.flip(0).cumsum(0).flip(0)
    return later / powers


def update(keeper, optimizer, states, gates, returns):
    logits, values = keeper(states.flatten(0, 1))
    returns = returns.flatten()
    advantage = returns - values.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    chosen = Categorical(logits=logits, validate_args=False)
    policy_loss = -(chosen.log_prob(gates.flatten()) * advantage).mean()
    value_loss = nn.functional.smooth_l1_loss(values, returns)
    loss = policy_loss + 0.5 * value_loss - 0.01 * chosen.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(keeper.parameters(), 0.5)
    optimizer.step()
    return loss.item()


torch.manual_seed(13)
generator = torch.Generator().manual_seed(14)
keeper = Keeper()
valley = Valley(RESERVOIRS, generator)
optimizer = torch.optim.Adam(keeper.parameters(), lr=0.01)
for k in range(1, UPDATES + 1):
    days = 180 + 14 * k
    states, gates, rewards = play(keeper, valley, days, generator)
    loss = update(keeper, optimizer, states, gates, discounted(rewards))
    print(f"update {k} days {days} reward {rewards.mean().item():.5f} loss {loss:.6f}", flush=True)
print(f"{sum(p.detach().abs().sum().item() for p in keeper.parameters()):.5f}", flush=True)
