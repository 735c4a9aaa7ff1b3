"""A bank of elevators on a grid of floors: policy gradient held near a slowly moving reference policy."""
import copy
from dataclasses import dataclass

import torch
from torch import nn

UP, DOWN, OPEN = 0, 1, 2


@dataclass
class Config:
    floors: int = 11
    cabins: int = 24
    updates: int = 40
    lr: float = 6e-3
    kl_weight: float = 0.3
    polyak: float = 0.9
    seed: int = 4


class Building:
    def __init__(self, cfg, rng):
        self.cfg, self.rng = cfg, rng

    def reset(self):
        n, mid = self.cfg.cabins, self.cfg.floors // 2
        self.floor = torch.randint(mid - 1, mid + 2, (n,), generator=self.rng)
        self.call = torch.randint(0, self.cfg.floors, (n,), generator=self.rng)
        return self.view()

    def view(self):
        eye = torch.eye(self.cfg.floors)
        return torch.cat([eye[self.floor], eye[self.call], (self.call - self.floor).sign()[:, None].float()], 1)

    def legal(self):
        top, ground = self.floor == self.cfg.floors - 1, self.floor == 0
        return torch.stack([~top, ~ground, torch.ones_like(top)], 1)

    def move(self, action):
        before = (self.call - self.floor).abs()
        self.floor = (self.floor + (action == UP).long() - (action == DOWN).long()).clamp(0, self.cfg.floors - 1)
        served = (action == OPEN) & (before == 0)
        pay = (before - (self.call - self.floor).abs()).float() + 2.0 * served
        fresh = torch.randint(0, self.cfg.floors, self.call.shape, generator=self.rng)
        self.call = torch.where(served, fresh, self.call)
        return pay


def log_policy(net, obs, legal):
    return net(obs).masked_fill(~legal, float("-inf")).log_softmax(-1)


def shift(length):
    """Shifts get longer once the crew has learnt the middle floors."""
    return 4 if length <= 15 else 14


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    rng = torch.Generator().manual_seed(cfg.seed)
    actor = nn.Sequential(nn.Linear(2 * cfg.floors + 1, 24), nn.Tanh(), nn.Linear(24, 3))
    anchor = copy.deepcopy(actor).requires_grad_(False)
    optim = torch.optim.Adam(actor.parameters(), lr=cfg.lr)
    house = Building(cfg, rng)
    for update in range(1, cfg.updates + 1):
        obs, pays, chosen, drift = house.reset(), [], [], []
        for _ in range(shift(update)):
            legal = house.legal()
            logp = log_policy(actor, obs, legal)
            ref = log_policy(anchor, obs, legal)
            noise = -torch.log(-torch.log(torch.rand(logp.shape, generator=rng).clamp(1e-6, 1 - 1e-6)))
            action = (logp.detach() + noise).argmax(-1)
            chosen.append(logp.gather(1, action[:, None]).squeeze(1))
            gap = logp - ref
            drift.append((logp.exp() * gap).sum(-1))
            pays.append(house.move(action))
            obs = house.view()
        to_go = torch.stack(pays).flip(0).cumsum(0).flip(0)
        edge = to_go - to_go.mean(1, keepdim=True)
        loss = -(edge * torch.stack(chosen)).mean() + cfg.kl_weight * torch.stack(drift).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        for a, p in zip(anchor.parameters(), actor.parameters()):
            a.lerp_(p.detach(), 1 - cfg.polyak)
        print(f"update {update} pay {torch.stack(pays).mean().item():+.3f} objective {loss.item():+.4f}")
    print("actor sum of squares", sum(p.square().sum() for p in actor.parameters()).item())


main()
