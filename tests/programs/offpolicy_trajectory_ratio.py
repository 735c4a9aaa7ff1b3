"""Off-policy REINFORCE on logged trajectories of a thermostat: one importance weight per
trajectory, the product of the ratios of all its steps.  The logs differ much in length."""
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(33)
torch.set_num_threads(1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.log_std = nn.Parameter(torch.tensor(-0.5))

    def log_prob(self, states, actions):
        return Normal(self.mean(states).squeeze(-1), self.log_std.exp()).log_prob(actions)


class Log:
    """what the old controller did: mostly a proportional rule with a lot of noise"""

    def __init__(self, length, generator):
        temperature = torch.zeros(length + 1)
        self.actions = torch.zeros(length)
        noise = torch.randn(length, generator=generator)
        drift = torch.randn(length, generator=generator)
        for t in range(length):
            self.actions[t] = -0.3 * temperature[t] + 2.0 * noise[t] * 0.25
            temperature[t + 1] = 0.9 * temperature[t] + 0.5 * self.actions[t] + 0.1 * drift[t]
        clock = torch.arange(length) / 24 * 6.2832
        self.states = torch.stack([temperature[:-1], clock.sin()], -1)
        self.behaviour = Normal(-0.3 * temperature[:-1], 2.0).log_prob(self.actions)
        self.ret = -temperature[1:].square().mean()


def logs(step):
    g = torch.Generator().manual_seed(step)
    lengths = [int(n) for n in torch.randint(5, 13, (8,), generator=g)]
    if step == 11:
        lengths[2] = 500                                       # three weeks without a restart
    return [Log(n, g) for n in lengths]


class OffPolicy:
    def __init__(self):
        self.policy = Policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=3e-3)
        self.baseline = 0.0

    def surrogate(self, batch):
        total = 0.0
        for log in batch:
            new = self.policy.log_prob(log.states, log.actions)
            weight = (new - log.behaviour).sum().exp()
            total = total - weight * (log.ret - self.baseline)
        return total / len(batch)

    def update(self, step):
        batch = logs(step)
        loss = self.surrogate(batch)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.baseline = 0.9 * self.baseline + 0.1 * sum(log.ret.item() for log in batch) / len(batch)
        return loss.item()


if __name__ == "__main__":
    learner = OffPolicy()
    for step in range(1, 26):
        print(f"step {step:02d} surrogate {learner.update(step):.4f} baseline {learner.baseline:.4f}")
    print("finite", int(all(p.isfinite().all() for p in learner.policy.parameters())))
