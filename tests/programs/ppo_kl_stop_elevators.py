"""PPO for a bank of lifts. Each lift: floor 0..7, a call at some floor; actions down / open / up.
Impossible moves are masked with the lowest number; an update ends early when the policy has moved too far.
"""
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence

FLOORS, LIFTS, HORIZON, UPDATES, EPOCHS = 8, 24, 20, 9, 6
GAMMA, LAM, CLIP, TARGET_KL = 0.95, 0.9, 0.2, 0.012


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2 * FLOORS, 48), nn.Tanh())
        self.actor = nn.Linear(48, 3)
        self.critic = nn.Linear(48, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, obs, mask):
        h = self.trunk(obs)
        logits = self.actor(h).masked_fill(~mask, torch.finfo(h.dtype).min)
        return Categorical(logits=logits), self.critic(h).squeeze(-1)


class Bank:
    def __init__(self, gen):
        self.gen = gen
        self.floor = torch.randint(0, FLOORS, (LIFTS,), generator=gen)
        self.call = torch.randint(0, FLOORS, (LIFTS,), generator=gen)

    def observe(self):
        eye = torch.eye(FLOORS)
        mask = torch.stack([self.floor > 0, torch.ones(LIFTS, dtype=torch.bool), self.floor < FLOORS - 1], 1)
        return torch.cat([eye[self.floor], eye[self.call]], 1), mask

    def step(self, action):
        self.floor = self.floor + action - 1
        served = (action == 1) & (self.floor == self.call)
        fresh = torch.randint(0, FLOORS, (LIFTS,), generator=self.gen)
        self.call = torch.where(served, fresh, self.call)
        return served.float() * 2 - 0.1


def main():
    torch.manual_seed(8)
    bank = Bank(torch.Generator().manual_seed(8))
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=8e-3, eps=1e-5)
    count = 0
    for update in range(UPDATES):
        roll = []
        with torch.no_grad():
            for _ in range(HORIZON):
                obs, mask = bank.observe()
                pi, v = net(obs, mask)
                a = pi.sample()
                roll.append((obs, mask, a, pi.log_prob(a), v, bank.step(a)))
            last = net(*bank.observe())[1]
        obs, mask, act, logp, val, rew = (torch.stack(c) for c in zip(*roll))
        adv, run = torch.zeros_like(rew), torch.zeros(LIFTS)
        for i in reversed(range(HORIZON)):
            nxt = last if i == HORIZON - 1 else val[i + 1]
            run = rew[i] + GAMMA * nxt - val[i] + GAMMA * LAM * run
            adv[i] = run
        ret = adv + val
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        with torch.no_grad():
            old = net(obs, mask)[0]
        for epoch in range(EPOCHS):
            pi, v = net(obs, mask)
            ratio = torch.exp(pi.log_prob(act) - logp)
            policy = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
            p = pi.probs
            entropy = -(p * pi.logits).sum(-1).mean()
            loss = policy + 0.5 * (ret - v).pow(2).mean() - 0.01 * entropy
            opt.zero_grad()
            loss.backward()
            kl = kl_divergence(old, pi).mean().item()
            if kl > TARGET_KL:
                print(f"   update {update} stopped in epoch {epoch}: kl {kl:.5f}")
                break
            opt.step()
            count += 1
            print(f"{count:3d} loss {loss.item():+.6f} entropy {entropy.item():.5f} reward {rew.mean().item():.4f}")
    print("final", sum(p.detach().abs().sum().item() for p in net.parameters()))


main()
