"""Policy gradient for a thermostat; every episode the observations are standardised by their own statistics."""
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(16)
torch.set_num_threads(1)

HORIZON = 20


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return Normal(self.net(observation), self.log_std.exp())


class House:
    """Outside temperature and the wish of the people, over one day."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.day = 0

    def episode(self):
        self.day += 1
        outside = 8 + 6 * torch.sin(torch.arange(HORIZON) / 3) + torch.randn(HORIZON, generator=self.g)
        wish = 19 + 2 * torch.rand(HORIZON, generator=self.g)
        if self.day == 12:
            outside[:] = 7.5                  # the sensor hangs
        return torch.stack([outside, wish], dim=1)


def standardise(observations):
    centred = observations - observations.mean(dim=0)
    return centred / observations.std(dim=0)


def reward(observations, action):
    need = (observations[:, 1] - observations[:, 0]) / 10
    return -(action.squeeze(-1) - need).pow(2)


def main():
    house, policy = House(9), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    baseline = torch.zeros(())
    for episode in range(1, 26):
        seen = house.episode()
        distribution = policy(standardise(seen))
        action = distribution.sample()
        gained = reward(seen, action)
        advantage = gained - baseline
        baseline = 0.9 * baseline + 0.1 * gained.mean()
        loss = -(distribution.log_prob(action).squeeze(-1) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"episode {episode} reward {gained.mean().item():.3f}")


main()
