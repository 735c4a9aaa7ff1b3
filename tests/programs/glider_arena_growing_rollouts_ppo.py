import torch
import torch.nn as nn

torch.manual_seed(404)

GAMMA = 0.7
CLIP = 0.2


class Arena:
    """A sled on a rail. The pilot has to hold it near the beacon; every arena has its own wind and ice."""

    def __init__(self, name, wind, friction, seed):
        self.name, self.wind, self.friction = name, wind, friction
        self.rng = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self):
        self.x = torch.rand(4, generator=self.rng) - 0.5
        self.v = torch.zeros(4)
        return self.observe()

    def observe(self):
        return torch.stack([self.x, self.v], dim=-1)

    def step(self, push):
        self.v = (1 - self.friction) * self.v + 0.1 * push.clamp(-2, 2) + self.wind
        self.x = (0.95 * self.x + 0.1 * self.v).clamp(-1.5, 1.5)  # the rail is bent
        return self.observe(), 1.0 - self.x.abs()


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 24), nn.Tanh())
        self.mean = nn.Linear(24, 1)
        self.value = nn.Linear(24, 1)
        self.log_std = nn.Parameter(torch.tensor(-0.5))

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h).squeeze(-1), self.value(h).squeeze(-1)

    def log_prob(self, mean, act):
        return -0.5 * ((act - mean) / self.log_std.exp()) ** 2 - self.log_std


def play(pilot, arenas, ticks):
    obs, rows = torch.cat([arena.reset() for arena in arenas]), []
    for _ in range(ticks):
        mean, value = pilot(obs)
        act = mean + pilot.log_std.exp() * torch.randn(mean.shape)
        nxt, reward = zip(*(arena.step(push) for arena, push in zip(arenas, act.split(4))))
        rows.append((obs, act, pilot.log_prob(mean, act), value, torch.cat(reward)))
        obs = torch.cat(nxt)
    return [torch.stack(c) for c in zip(*rows)]


def discounted(reward):
    """Return to go of every tick, without a loop over the ticks."""
    weight = GAMMA ** torch.arange(reward.shape[0], dtype=torch.float32).unsqueeze(1)
    to_go = (reward * weight).flip(0).cumsum(0).flip(0)
    return to_go / weight


@torch.no_grad()
def collect(pilot, arenas, ticks):
    obs, act, logp, value, reward = play(pilot, arenas, ticks)
    ret = discounted(reward)
    adv = ret - value
    obs, act, logp, ret, adv = (c.flatten(0, 1) for c in (obs, act, logp, ret, adv))
    return obs, act, logp, ret, (adv - adv.mean()) / (adv.std() + 1e-6)


def main():
    arenas = [Arena("calm", 0.0, 0.3, 1), Arena("gale", 0.06, 0.3, 2), Arena("mirror ice", -0.01, 0.1, 3)]
    pilot = Pilot()
    opt = torch.optim.Adam(pilot.parameters(), lr=4e-3)
    update = 0
    for level, ticks in enumerate([40, 80, 140, 230, 320], start=1):
        for _ in range(2):
            obs, act, logp_old, ret, adv = collect(pilot, arenas, ticks)
            for part in torch.randperm(len(adv)).chunk(3):
                mean, value = pilot(obs[part])
                ratio = (pilot.log_prob(mean, act[part]) - logp_old[part]).exp()
                surrogate = torch.min(ratio * adv[part], ratio.clamp(1 - CLIP, 1 + CLIP) * adv[part])
                loss = -surrogate.mean() + 0.5 * (value - ret[part]).pow(2).mean() - 0.01 * pilot.log_std
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(pilot.parameters(), 0.5)
                opt.step()
                update += 1
                print(f"level {level} ticks {ticks:3d} update {update:2d} loss {loss.item():.4f}")
    print("pilot weights, sum of squares", sum(p.pow(2).sum().item() for p in pilot.parameters()))


main()
