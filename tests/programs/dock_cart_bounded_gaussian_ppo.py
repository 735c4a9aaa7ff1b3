"""PPO on a little cart that has to roll to its dock. The motor takes forces in [-1, 1] only, so the policy is a
Gaussian that is cut off there, with the right normalisation."""
import math

import torch
from torch import nn

SQRT2 = math.sqrt(2.0)


def Phi(z):
    return 0.5 * (1 + torch.erf(z / SQRT2))


class CartDock:
    """64 carts on a rail: position and velocity; the dock is at 0"""

    def __init__(self, n, gen):
        self.n, self.gen = n, gen

    def reset(self):
        self.x = 8.0 + 2 * torch.rand(self.n, generator=self.gen)
        self.v = torch.zeros(self.n)
        return self.obs()

    def obs(self):
        return torch.stack([self.x, self.v], 1)

    def step(self, force):
        self.v = 0.98 * self.v + 0.12 * force
        far = self.x.abs()
        self.x = self.x + 0.2 * self.v
        return self.obs(), far - self.x.abs()


class CutOffGaussian:
    def __init__(self, mu, sigma):
        self.mu, self.sigma = mu, sigma
        self.low, self.high = Phi((-1 - mu) / sigma), Phi((1 - mu) / sigma)

    def sample(self, gen):
        u = torch.rand(self.mu.shape, generator=gen)
        p = self.low + u * (self.high - self.low)
        z = SQRT2 * torch.erfinv((2 * p - 1).clamp(-0.999999, 0.999999))
        return (self.mu + self.sigma * z).clamp(-1, 1)

    def log_prob(self, a):
        z = (a - self.mu) / self.sigma
        mass = self.high - self.low
        return -0.5 * z * z - self.sigma.log() - 0.5 * math.log(2 * math.pi) - torch.log(mass)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(2, 1)
        nn.init.zeros_(self.actor.weight)      # gains of a PD controller
        self.critic = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))
        self.log_sigma = nn.Parameter(torch.tensor(-1.4))

    def policy(self, obs):
        return CutOffGaussian(self.actor(obs).squeeze(-1), self.log_sigma.exp())


@torch.no_grad()
def rollout(agent, env, gen, horizon=25, gamma=0.8):
    obs, O, A, LP, R = env.reset(), [], [], [], []
    for _ in range(horizon):
        pi = agent.policy(obs)
        a = pi.sample(gen)
        O.append(obs), A.append(a), LP.append(pi.log_prob(a))
        obs, r = env.step(a)
        R.append(r)
    returns, acc = [], torch.zeros(env.n)
    for r in reversed(R):
        acc = r + gamma * acc
        returns.insert(0, acc)
    O, A, LP, G = map(torch.cat, (O, A, LP, returns))
    adv = G - agent.critic(O).squeeze(-1)
    return O, A, LP, (G - G.mean()) / G.std(), (adv - adv.mean()) / adv.std()


def main(iterations=36, epochs=3):
    torch.manual_seed(41)
    gen = torch.Generator().manual_seed(42)
    agent, env = Agent(), CartDock(64, gen)
    optim = torch.optim.Adam(agent.parameters(), lr=0.08)
    update = 0
    for _ in range(iterations // epochs):
        obs, act, old, ret, adv = rollout(agent, env, gen)
        for _ in range(epochs):
            update += 1
            ratio = (agent.policy(obs).log_prob(act) - old).exp()
            surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            value_loss = (agent.critic(obs).squeeze(-1) - ret).square().mean()
            loss = -surrogate + 0.5 * value_loss
            optim.zero_grad()
            loss.backward()
            optim.step()
            print(f"update {update:2d} loss {loss.item():+.4f} sigma {agent.log_sigma.exp().item():.3f}")
    print("total squared weight", sum(p.detach().square().sum().item() for p in agent.parameters()))


main()
