"""Action-chunk diffusion for a kneading arm: denoise eight waypoints given the state of the dough."""
import copy
import math

import torch
import torch.nn as nn

HORIZON, JOINTS, LEVELS = 8, 4, 50


def demonstrations(n=256):
    torch.manual_seed(17)
    stiffness = torch.rand(n, 1)
    phase = 6.28 * torch.rand(n, 1)
    time = torch.linspace(0, 1, HORIZON)
    press = 0.3 + stiffness * torch.sin(6.28 * time + phase)
    fold = 0.5 * torch.cos(6.28 * time + phase)
    wrist = torch.full((n, HORIZON), 1.57)           # locked with a pin during all demonstrations
    gripper = (fold > 0.2).float()
    actions = torch.stack([press, fold, wrist, gripper], -1)
    valid = torch.arange(HORIZON)[None] < torch.randint(4, HORIZON + 1, (n, 1))
    actions = torch.where(valid[..., None], actions, torch.nan)
    return torch.cat([stiffness, phase.sin(), phase.cos()], 1), actions, valid


class Normalizer:
    def __init__(self, actions, valid):
        flat = actions[valid]
        self.low, self.high = flat.amin(0), flat.amax(0)

    def encode(self, a):
        unit = (a - self.low) / (self.high - self.low)
        return torch.where(self.high > self.low, 2 * unit - 1, torch.zeros_like(a))


class Schedule:
    """Cosine; the first level has no noise at all."""

    def __init__(self):
        u = torch.arange(LEVELS) / LEVELS
        self.keep = torch.cos(u * math.pi / 2).square()
        self.snr = self.keep / (1 - self.keep)

    def spoil(self, x, k, noise):
        a = self.keep[k].view(-1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * noise


class Denoiser(nn.Module):
    def __init__(self, hidden=64, out=HORIZON * JOINTS):
        super().__init__()
        self.level = nn.Embedding(LEVELS, 16)
        self.net = nn.Sequential(nn.Linear(out + 19, hidden), nn.Mish(), nn.Linear(hidden, out))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, noisy, k, state):
        return self.net(torch.cat([noisy.flatten(1), state, self.level(k)], 1)).view_as(noisy)


@torch.no_grad()
def rollout(model, schedule, state):
    x = torch.randn(len(state), HORIZON, JOINTS)
    for k in range(LEVELS - 1, 0, -7):
        level = torch.full((len(state),), k)
        clean = model(x, level, state).clamp(-1, 1)
        x = schedule.spoil(clean, (level - 7).clamp(min=0), torch.randn_like(x))
    return x


class Trainer:
    def __init__(self):
        self.state, raw, self.valid = demonstrations()
        self.target = Normalizer(raw, self.valid).encode(raw)
        self.schedule, self.model = Schedule(), Denoiser()
        self.shadow = copy.deepcopy(self.model).requires_grad_(False)
        self.opt = torch.optim.NAdam(self.model.parameters(), lr=4e-3)

    def loss(self, rows):
        mask = self.valid[rows].unsqueeze(-1)
        clean = torch.where(mask, self.target[rows], 0.0)
        k = torch.randint(LEVELS, (len(rows),))
        noisy = self.schedule.spoil(clean, k, torch.randn_like(clean))
        guess = self.model(noisy, k, self.state[rows])
        weight = self.schedule.snr[k].clamp(max=5.0)
        error = ((guess - clean).square() * mask).sum((1, 2)) / (mask.sum((1, 2)) * JOINTS)
        return (weight * error).mean()

    def run(self, steps=36):
        best = math.inf
        for n in range(steps):
            loss = self.loss(torch.randint(len(self.state), (64,)))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            decay = 1 - (1 + n) ** -0.75
            for s, p in zip(self.shadow.parameters(), self.model.parameters()):
                s.lerp_(p.detach(), 1 - decay)
            note = ""
            if n % 12 == 11:
                gap = rollout(self.shadow, self.schedule, self.state[:32]) - self.target[:32]
                rms = gap[self.valid[:32]].square().mean().sqrt().item()
                best = min(best, rms)
                note = f"   rollout rms {rms:.3f}, best {best:.3f}"
            print(f"update {n + 1}: {loss.item():.5f}{note}")
        return self.model


trained = Trainer().run()
print("weights squared and summed:", sum(p.detach().pow(2).sum().item() for p in trained.parameters()))
