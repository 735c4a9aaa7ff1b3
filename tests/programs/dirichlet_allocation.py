"""Asset allocation with REINFORCE: a Dirichlet policy over portfolio weights, the reward is the log growth."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Dirichlet

ASSETS = ("equity", "bonds", "gold", "cash")
DAYS, HISTORY, EPISODE = 420, 5, 10


class Market:
    """Daily returns and turnover; the observation is the recent history of both."""

    def __init__(self, seed=41):
        g = torch.Generator().manual_seed(seed)
        drift = torch.tensor([6e-4, 2e-4, 3e-4, 1e-4])
        vol = torch.tensor([0.012, 0.004, 0.009, 0.0002])
        self.returns = drift + vol * torch.randn(DAYS, len(ASSETS), generator=g)
        self.turnover = torch.exp(0.3 * torch.randn(DAYS, generator=g))
        self.turnover[263] *= 1e4              # index reconstitution, booked in units instead of lots

    def observation(self, day):
        past = slice(day - HISTORY, day)
        scaled = self.returns[past] / self.returns[:HISTORY * 4].std(0)
        return torch.cat([scaled.flatten(), self.turnover[past] - 1])


class AllocationPolicy(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        n_in = HISTORY * (len(ASSETS) + 1)
        self.body = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU())
        self.concentration = nn.Linear(hidden, len(ASSETS))
        self.value = nn.Linear(hidden, 1)

    def forward(self, observation):
        h = self.body(observation)
        alpha = F.softplus(self.concentration(h))
        return Dirichlet(alpha), self.value(h).squeeze(-1)


class Reinforce:
    def __init__(self, policy, market, lr=1e-3):
        self.policy, self.market = policy, market
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=lr)
        self.baseline = None

    def rollout(self, start):
        observations, actions, rewards = [], [], []
        for day in range(start, start + EPISODE):
            observation = self.market.observation(day)
            with torch.no_grad():
                policy, _ = self.policy(observation)
                weights = policy.sample()
            growth = torch.log1p((weights * self.market.returns[day]).sum())
            observations.append(observation)
            actions.append(weights.clamp(min=1e-6))
            rewards.append(100 * growth)
        actions = torch.stack(actions)
        return torch.stack(observations), actions / actions.sum(-1, keepdim=True), torch.stack(rewards)

    def update(self, start):
        observations, actions, rewards = self.rollout(start)
        policy, value = self.policy(observations)
        advantage = rewards - value.detach()
        losses = {
            "actor": -(policy.log_prob(actions) * advantage).mean(),
            "critic": F.smooth_l1_loss(value, rewards),
            "entropy": -1e-3 * policy.entropy().mean(),
        }
        self.optimizer.zero_grad()
        sum(losses.values()).backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return rewards.mean().item(), losses


def main():
    torch.manual_seed(41)
    policy = AllocationPolicy()
    agent = Reinforce(policy, Market())
    for episode, start in enumerate(range(HISTORY, DAYS - EPISODE, EPISODE), 1):
        reward, losses = agent.update(start)
        print(f"episode {episode} reward {reward:.5f} " + " ".join(f"{k} {v.item():.5f}" for k, v in losses.items()), flush=True)
    print("finite", int(all(p.isfinite().all() for p in policy.parameters())))


if __name__ == "__main__":
    main()
