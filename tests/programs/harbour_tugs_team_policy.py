"""Three harbour tugs learn together to bring barges in: one shared policy, a team reward, and a baseline
that is the sum of the tugs' own values (value decomposition)."""
import logging
import sys

import torch
from torch import nn
from torch.distributions import Categorical

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
log = logging.getLogger("tugs")

TUGS, QUAYS, HORIZON, ROUNDS, TANK = 3, 6, 12, 45, 400
STAY, LEFT, RIGHT, TOW, BUNKER = range(5)


class Harbour:
    """a line of quays; bunkering only at quay 0; a campaign goes on over all rounds"""

    cost = {STAY: 1, LEFT: 2, RIGHT: 2, TOW: 3, BUNKER: 0}     # engines idle when a tug holds station

    def __init__(self, gen):
        self.gen = gen
        self.place = torch.zeros(TUGS, dtype=torch.long)
        self.fuel = torch.full((TUGS,), TANK)
        self.barges = torch.ones(QUAYS, dtype=torch.long)

    def legal(self):
        m = torch.zeros(TUGS, 5, dtype=torch.bool)
        for i in range(TUGS):
            p, f = int(self.place[i]), int(self.fuel[i])
            m[i, STAY] = f >= self.cost[STAY]
            m[i, LEFT] = p > 0 and f >= self.cost[LEFT]
            m[i, RIGHT] = p < QUAYS - 1 and f >= self.cost[RIGHT]
            m[i, TOW] = f >= self.cost[TOW]
            m[i, BUNKER] = p == 0
        return m

    def observe(self):
        here = torch.nn.functional.one_hot(self.place, QUAYS).float()
        fuel = (self.fuel.float() / TANK).unsqueeze(1)
        return torch.cat([here, fuel, self.barges.float().expand(TUGS, QUAYS) / 3], 1)

    def act(self, actions):
        reward = 0.0
        for i, a in enumerate(actions.tolist()):
            self.fuel[i] -= self.cost[a]
            if a in (LEFT, RIGHT):
                self.place[i] += 1 if a == RIGHT else -1
            elif a == BUNKER:
                self.fuel[i] = min(TANK, int(self.fuel[i]) + 40)
            elif a == TOW and self.barges[self.place[i]] > 0:
                self.barges[self.place[i]] -= 1
                reward += 0.3 + 0.3 * float(self.place[i])      # the far quays pay better
        self.barges += (torch.rand(QUAYS, generator=self.gen) < 0.35).long()
        self.barges.clamp_(max=3)
        return reward


class Tug(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * QUAYS + 1, width), nn.Tanh())
        self.policy = nn.Linear(width, 5)
        self.value = nn.Linear(width, 1)

    def forward(self, obs, legal):
        h = self.body(obs)
        logits = self.policy(h).masked_fill(~legal, float("-inf"))
        return logits, self.value(h).sum()            # team value = sum over the tugs


def play(env, net, gen):
    logps, values, rewards, ents = [], [], [], []
    for _ in range(HORIZON):
        logits, value = net(env.observe(), env.legal())
        dist = Categorical(logits=logits)
        u = torch.rand(TUGS, 1, generator=gen)
        action = (dist.probs.cumsum(-1) < u * dist.probs.sum(-1, keepdim=True)).sum(-1)
        logps.append(dist.log_prob(action).sum())
        ents.append(dist.entropy().mean())
        values.append(value)
        rewards.append(env.act(action))
    returns, acc = [], 0.0
    for r in reversed(rewards):
        acc = r + 0.9 * acc
        returns.insert(0, acc)
    return torch.stack(logps), torch.stack(values), torch.tensor(returns), torch.stack(ents), sum(rewards)


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(9)
    env, net = Harbour(gen), Tug()
    opt = torch.optim.RMSprop(net.parameters(), lr=3e-3)
    for rnd in range(1, ROUNDS + 1):
        logp, value, returns, ent, total = play(env, net, gen)
        adv = (returns - value).detach()
        loss = -(logp * adv).mean() + 0.5 * (returns - value).pow(2).mean() - 0.02 * ent.mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        log.info("round %d reward %.2f loss %.6f least fuel %d", rnd, total, loss.item(), int(env.fuel.min()))
        sys.stdout.flush()
    log.info("%.6f", sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
