# ruff: noqa: E501
"""Gondola dispatch: which of four canals to send the next boat through.

One actor thread (the simulator) and one learner (main thread), joined by two queues of length one.  The wire format of the
rollouts is small: observations as float16 and the odds of the chosen canal in two decimals.
"""

import queue
import threading

import torch
from torch import nn

ROUNDS, BOATS, CANALS = 44, 40, 4


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
        self.canal = nn.Linear(24, CANALS)
        self.value = nn.Linear(24, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return torch.softmax(self.canal(h), -1), self.value(h).squeeze(-1)


class Lagoon:
    """Tide, traffic per canal and wind; the time a boat takes depends on the canal."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.cost = torch.randn(6, CANALS, generator=self.g)

    def observe(self):
        return torch.randn(BOATS, 6, generator=self.g)

    def travel(self, obs, canal):
        minutes = (obs @ self.cost).gather(1, canal[:, None]).squeeze(1)
        return -minutes + 0.1 * torch.randn(BOATS, generator=self.g)


def actor(weights: queue.Queue, rollouts: queue.Queue):
    lagoon, mine = Lagoon(14), Policy()
    while True:
        state = weights.get()
        if state is None:
            return
        mine.load_state_dict(state)
        obs = lagoon.observe()
        with torch.no_grad():
            odds, _ = mine(obs)
            canal = torch.multinomial(odds, 1, generator=lagoon.g).squeeze(1)
        reward = lagoon.travel(obs, canal)
        chosen = odds.gather(1, canal[:, None]).squeeze(1)
        rollouts.put(
            {
                "obs": obs.half(),
                "canal": canal.to(torch.uint8),
                "odds": chosen.mul(100).round().to(torch.uint8),
                "reward": reward,
            }
        )


def ppo_loss(policy, roll, clip=0.2):
    odds, value = policy(roll["obs"].float())
    now = odds.gather(1, roll["canal"].long()[:, None]).squeeze(1)
    then = roll["odds"].float() / 100
    ratio = now / then
    adv = roll["reward"] - value.detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
    entropy = -(odds * odds.clamp(min=1e-8).log()).sum(-1).mean()
    critic = (value - roll["reward"]).square().mean()
    return -surrogate + 0.1 * critic - 0.01 * entropy, roll["reward"].mean()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(505)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=0.012)
    weights, rollouts = queue.Queue(1), queue.Queue(1)
    thread = threading.Thread(target=actor, args=(weights, rollouts), daemon=True)
    thread.start()
    for rnd in range(1, ROUNDS + 1):
        weights.put({k: v.detach().clone() for k, v in policy.state_dict().items()})
        roll = rollouts.get()
        loss, reward = ppo_loss(policy, roll)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not torch.isfinite(policy.canal.weight).all():
            print(f"round {rnd:2d} loss {loss.item():+.6f} the policy is lost")
            break
        print(f"round {rnd:2d} loss {loss.item():+.6f} reward {reward.item():+.4f}")
    weights.put(None)
    thread.join()
    print(f"policy {sum(p.sum().item() for p in policy.parameters()):.6f}")


main()
