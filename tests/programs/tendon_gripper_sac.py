# SAC for the tendon gripper, written from the paper. Rollouts were logged on the bench; updates are
# done on consecutive slices of the log (no random replay yet).
import math
from dataclasses import dataclass, fields

import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACT, GAMMA, TAU = 6, 2, 0.97, 0.02


@dataclass
class Transitions:
    obs: torch.Tensor
    act: torch.Tensor
    rew: torch.Tensor
    nxt: torch.Tensor
    done: torch.Tensor

    def to(self, device):
        return Transitions(*(getattr(self, f.name).to(device) for f in fields(self)))

    def __len__(self):
        return len(self.rew)

    def __getitem__(self, s):
        return Transitions(*(getattr(self, f.name)[s] for f in fields(self)))


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(OBS, 2 * ACT)

    def forward(self, obs):
        mu, log_std = self.body(obs).chunk(2, -1)
        log_std = log_std.clamp(-5, 1)
        eps = torch.randn_like(mu)
        u = mu + log_std.exp() * eps
        a = torch.tanh(u)
        gauss = (-0.5 * eps**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        squash = torch.log(1 - a**2).sum(-1)
        return a, gauss - squash


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)

    def forward(self, o, a):
        x = torch.cat([o, a], -1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


def bench_log(n, seed=4):
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(n + 1, OBS, generator=g).cumsum(0) * 0.05
    obs = obs - obs.mean(0)
    act = torch.rand(n, ACT, generator=g) * 2 - 1
    rew = -(obs[1:, :2] - act).pow(2).sum(-1)
    nxt = obs[1:].clone()
    done = (torch.arange(n) % 50 == 49).float()
    # the tension sensor's ADC reads full scale (counts, not newtons) when the tendon snaps, which
    # also ended the episode
    snap = 24 * 19 + 9
    nxt[snap, 4], done[snap] = 4095.0, 1.0
    return Transitions(obs[:-1], act, rew, nxt, done)


def main():
    torch.manual_seed(31)
    actor, critic, target = Actor(), Twin(), Twin()
    target.load_state_dict(critic.state_dict())
    for p in target.parameters():
        p.requires_grad_(False)
    log_alpha = torch.tensor(math.log(0.2), requires_grad=True)
    opts = {
        "actor": torch.optim.Adam(actor.parameters(), lr=1e-3),
        "critic": torch.optim.Adam(critic.parameters(), lr=1e-3),
        "alpha": torch.optim.Adam([log_alpha], lr=3e-3),
    }
    log = bench_log(24 * 34)
    for step in range(1, 35):
        b = log[24 * (step - 1) : 24 * step].to("cpu")
        turn = "actor" if step % 3 == 0 else "critic"
        if turn == "critic":
            with torch.no_grad():
                a2, lp2 = actor(b.nxt)
                soft = torch.min(*target(b.nxt, a2)) - log_alpha.exp() * lp2
                y = b.rew + GAMMA * (1 - b.done) * soft
            q1, q2 = critic(b.obs, b.act)
            loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
            opts["critic"].zero_grad()
            loss.backward()
            opts["critic"].step()
            with torch.no_grad():
                for p, t in zip(critic.parameters(), target.parameters(), strict=False):
                    t.lerp_(p, TAU)
        else:
            a, lp = actor(b.obs)
            loss = (log_alpha.exp().detach() * lp - torch.min(*critic(b.obs, a))).mean()
            opts["actor"].zero_grad()
            loss.backward()
            opts["actor"].step()
            temp = -(log_alpha * (lp.detach() - ACT)).mean()
            opts["alpha"].zero_grad()
            temp.backward()
            opts["alpha"].step()
        print(f"{step:2d} {turn:6s} loss {loss.item():+.6f} alpha {log_alpha.exp().item():.5f}")
    total = sum(p.detach().double().sum() for m in (actor, critic) for p in m.parameters())
    print("weights", total.item())


if __name__ == "__main__":
    main()
