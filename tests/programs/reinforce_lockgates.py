"""Canal lock controller, REINFORCE with a learned baseline; the environment is batched numpy."""
import numpy as np
import torch
import torch.nn as nn

ACTIONS = ("wait", "open_low", "open_high", "fill", "drain")


class LockEnv:
    """State: water level 0..3, boats waiting below and above, which gate is open (-1 none)."""

    def __init__(self, n, horizon, seed):
        self.n, self.horizon = n, horizon
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.level = self.rng.integers(0, 4, self.n)
        self.below = self.rng.integers(0, 3, self.n)
        self.above = self.rng.integers(0, 3, self.n)
        self.t = 0
        self.done = np.zeros(self.n, bool)
        return self.obs()

    def obs(self):
        left = np.full(self.n, 1 - self.t / self.horizon)
        return np.stack([self.level / 3, self.below / 3, self.above / 3, left,
                         self.level == 0, self.level == 3], 1).astype(np.float32)

    def legal(self):
        ok = np.ones((self.n, len(ACTIONS)), bool)
        ok[:, 1] = self.level == 0
        ok[:, 2] = self.level == 3
        ok[:, 3] = self.level < 3
        ok[:, 4] = self.level > 0
        return ok

    def step(self, a):
        reward = np.where(self.done, 0.0, -0.1 * (self.below + self.above))
        low, high = (a == 1) & ~self.done, (a == 2) & ~self.done
        reward += 1.0 * (low & (self.below > 0)) + 1.0 * (high & (self.above > 0))
        self.below = np.maximum(self.below - low, 0)
        self.above = np.maximum(self.above - high, 0)
        self.level = np.clip(self.level + (a == 3) - (a == 4), 0, 3)
        self.t += 1
        self.done |= (self.below + self.above) == 0
        return self.obs(), reward.astype(np.float32), self.done.copy()


class Keeper(nn.Module):
    def __init__(self, h=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, h), nn.Tanh())
        self.pi = nn.Linear(h, len(ACTIONS))
        self.value = nn.Sequential(nn.Linear(6, h), nn.Tanh(), nn.Linear(h, 1))

    def forward(self, obs, legal):
        logits = self.pi(self.body(obs)).masked_fill(~legal, -torch.inf)      # illegal: never
        return torch.log_softmax(logits, -1), self.value(obs).squeeze(-1)


def rollout(env, keeper):
    obs, alive = env.reset(), np.ones(env.n, bool)
    logps, values, entropies, rewards, masks, lengths = [], [], [], [], [], []
    while env.t < env.horizon:
        logp, v = keeper(torch.from_numpy(obs), torch.from_numpy(env.legal()))
        a = torch.multinomial(logp.detach().exp(), 1)
        logps.append(logp.gather(1, a).squeeze(1))
        finite = logp.masked_fill(logp.isneginf(), 0.0)
        entropies.append(-(logp.exp() * finite).sum(-1))
        values.append(v)
        masks.append(torch.from_numpy(alive.astype(np.float32)))
        obs, r, done = env.step(a.squeeze(1).numpy())
        rewards.append(torch.from_numpy(r))
        lengths += [env.t] * int((done & alive).sum())
        alive = ~done
    return map(torch.stack, (logps, values, entropies, rewards, masks)), lengths


def main():
    torch.manual_seed(66)
    env, keeper = LockEnv(32, horizon=10, seed=660), Keeper()
    actor = torch.optim.Adam([*keeper.body.parameters(), *keeper.pi.parameters()], lr=1e-2)
    critic = torch.optim.SGD(keeper.value.parameters(), lr=5e-2, momentum=0.8)
    for episode in range(1, 46):
        (logp, v, ent, r, m), lengths = rollout(env, keeper)
        ret = torch.flip(torch.cumsum(torch.flip(r * m, [0]), 0), [0])
        adv = (ret - v.detach()) * m
        policy = -(logp * adv).sum() / m.sum() - 0.01 * (ent * m).sum() / m.sum()
        vloss = ((ret - v) * m).square().sum() / m.sum()
        actor.zero_grad(), critic.zero_grad()
        (policy + vloss).backward()
        actor.step()
        if episode % 2:                     # the critic is slower on purpose
            critic.step()
        # solved within 4 moves: often nobody is, then there is no mean
        quick = [n for n in lengths if n <= 4 and n > 1]
        mean_quick = sum(quick) / len(quick) if len(quick) > 2 else float("nan")
        print(f"ep {episode:2d} pg {policy.item():+.5f} value {vloss.item():.5f} "
              f"return {ret[0].mean().item():+.4f} quick {mean_quick:.2f}")


main()
