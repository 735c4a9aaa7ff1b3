# Assignment 4, "policy gradients": PPO for the brake of a cable-car gondola that has to stop at the platform.
# Student version. The exploration noise is not learned, it is annealed (the slides say it works better for brakes).
import torch
from torch import nn

SEED = 33
ROUNDS = 36
HORIZON = 40
N_ENVS = 12
EPOCHS = 2
MINIBATCHES = 2
STD_START = 0.6
ANNEAL_ROUNDS = 20      # after that the policy should be "almost deterministic"

torch.manual_seed(SEED)


class Gondola:
    """state: distance to the platform, speed, wind. action: brake force in [-1, 1] (negative lets it roll)."""

    def __init__(self, n):
        self.n = n
        self.gen = torch.Generator().manual_seed(SEED + 1)
        self.reset()

    def reset(self):
        self.dist = 8 + 2 * torch.rand(self.n, generator=self.gen)
        self.speed = 1.5 + 0.3 * torch.randn(self.n, generator=self.gen)
        self.wind = 0.2 * torch.randn(self.n, generator=self.gen)
        return self.obs()

    def obs(self):
        return torch.stack([self.dist / 10, self.speed, self.wind], dim=1)

    def step(self, action):
        force = action.clamp(-1, 1)
        self.speed = (self.speed - 0.15 * force + 0.05 * self.wind).clamp(-1, 3)
        self.dist = self.dist - 0.2 * self.speed
        wanted = 0.2 * self.dist
        reward = -(self.speed - wanted).pow(2) - 0.01 * force.pow(2)
        return self.obs(), reward


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.mean = nn.Linear(32, 1)
        self.value = nn.Linear(32, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h).squeeze(-1), self.value(h).squeeze(-1)


def noise_level(round_index):
    left = 1.0 - round_index / ANNEAL_ROUNDS
    return torch.tensor(STD_START * max(left, 0.0))


def log_prob(action, mean, std):
    z = (action - mean) / std
    return -0.5 * z.pow(2) - std.log() - 0.9189385


def gae(rewards, values, last, gamma=0.97, lam=0.9):
    adv = torch.zeros_like(rewards)
    running = torch.zeros_like(last)
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(rewards) else last
        delta = rewards[t] + gamma * following - values[t]
        running = delta + gamma * lam * running
        adv[t] = running
    return adv, adv + values


@torch.no_grad()
def rollout(env, net, std):
    obs = env.reset()
    store = {"obs": [], "act": [], "logp": [], "rew": [], "val": []}
    for _ in range(HORIZON):
        mean, value = net(obs)
        act = mean + std * torch.randn(mean.shape)
        store["obs"].append(obs)
        store["act"].append(act)
        store["logp"].append(log_prob(act, mean, std))
        store["val"].append(value)
        obs, rew = env.step(act)
        store["rew"].append(rew)
    last = net(obs)[1]
    batch = {k: torch.stack(v) for k, v in store.items()}
    adv, ret = gae(batch["rew"], batch["val"], last)
    batch["adv"] = (adv - adv.mean()) / (adv.std() + 1e-8)
    batch["ret"] = ret
    return {k: v.flatten(0, 1) for k, v in batch.items()}


def main():
    env = Gondola(N_ENVS)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for r in range(ROUNDS):
        std = noise_level(r)
        b = rollout(env, net, std)
        total = 0.0
        for _ in range(EPOCHS):
            for idx in torch.randperm(HORIZON * N_ENVS).chunk(MINIBATCHES):
                mean, value = net(b["obs"][idx])
                ratio = (log_prob(b["act"][idx], mean, std) - b["logp"][idx]).exp()
                adv = b["adv"][idx]
                surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
                loss = -surrogate.mean() + 0.5 * (value - b["ret"][idx]).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
                total += loss.item()
        print("round", r + 1, "reward %.6f" % b["rew"].mean().item(), "loss %.6f" % (total / EPOCHS / MINIBATCHES), flush=True)
    print("%.6f" % sum(p.abs().sum().item() for p in net.parameters()))


main()
