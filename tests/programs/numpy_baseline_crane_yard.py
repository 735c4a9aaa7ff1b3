"""Dispatch of container cranes by REINFORCE. The yard is numpy (it came with the simulator), the policy is torch.

reward = log tonnes moved in the shift, less a moving baseline.
"""
import numpy as np
import torch
import torch.nn as nn

BERTHS, SIGNALS, CRANES, SHIFTS = 10, 6, 4, 26


class Yard:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reach = self.rng.normal(size=(SIGNALS, CRANES))
        self.shift = 0

    def observe(self):
        self.shift += 1
        self.state = self.rng.normal(size=(BERTHS, SIGNALS)).astype(np.float32)
        return self.state

    def work(self, crane):
        fit = np.take_along_axis(self.state @ self.reach, crane[:, None], 1)[:, 0]
        tonnes = 120.0 / (1.0 + np.exp(-fit)) * self.rng.uniform(0.8, 1.2, BERTHS)
        if self.shift == 11:
            tonnes[7] = 0.0              # berth closed for dredging
        return np.round(tonnes, 1)


class Baseline:
    """Moving mean of the reward over all shifts so far."""

    def __init__(self, keep=0.85):
        self.keep, self.value = keep, None

    def advantage(self, reward):
        if self.value is None:
            self.value = reward.mean()
        adv = reward - self.value
        self.value = self.keep * self.value + (1 - self.keep) * reward.mean()
        return adv


def gumbel_pick(logits, rng):
    return (logits + rng.gumbel(size=logits.shape)).argmax(1)


def main():
    np.seterr(divide="ignore", invalid="ignore")
    torch.manual_seed(30)
    torch.set_num_threads(1)
    yard, baseline, rng = Yard(4), Baseline(), np.random.default_rng(44)
    policy = nn.Sequential(nn.Linear(SIGNALS, 32), nn.ELU(), nn.Linear(32, CRANES))
    opt = torch.optim.Adam(policy.parameters(), lr=0.01)

    for shift in range(1, SHIFTS + 1):
        logits = policy(torch.from_numpy(yard.observe()))
        crane = gumbel_pick(logits.detach().numpy(), rng)
        tonnes = yard.work(crane)
        reward = np.log(tonnes)
        adv = torch.from_numpy(baseline.advantage(reward)).float()

        logp = torch.log_softmax(logits, -1)
        chosen = logp[torch.arange(BERTHS), torch.from_numpy(crane)]
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(chosen * adv).mean() - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 2.0)
        opt.step()
        print(f"shift {shift:2d}  loss {loss.item():+.6f}  moved {tonnes.sum():.1f} t")
    print("policy weights", sum(p.detach().sum().item() for p in policy.parameters()))


if __name__ == "__main__":
    main()
