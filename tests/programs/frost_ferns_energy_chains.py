"""An energy-based model of frost ferns on window panes, trained with Langevin chains from a replay buffer."""
import torch
import torch.nn.functional as F
from torch import nn


class FernPatches:
    def __init__(self, seed, side=12):
        self.gen = torch.Generator().manual_seed(seed)
        self.side = side

    def batch(self, n):
        y, x = torch.meshgrid(torch.linspace(-1, 1, self.side), torch.linspace(-1, 1, self.side), indexing="ij")
        angle = torch.rand(n, 1, 1, generator=self.gen) * 3.14159
        freq = 6 + 3 * torch.rand(n, 1, 1, generator=self.gen)
        stem = x * angle.cos() + y * angle.sin()
        side = (-x * angle.sin() + y * angle.cos()).abs()
        fern = torch.cos(freq * (stem + side)) * torch.exp(-side)
        return fern[:, None] + 0.05 * torch.randn(n, 1, self.side, self.side, generator=self.gen)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten())
        self.top = nn.Linear(32 * 9, 1)

    def forward(self, x):
        return self.top(self.body(x)).squeeze(1)


class Replay:
    """Slots that hold nothing yet are NaN and are replaced by noise when they are drawn."""

    def __init__(self, size, side, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.slots = torch.full((size, 1, side, side), float("nan"))
        self.age = torch.full((size,), float("nan"))

    def draw(self, n):
        index = torch.randperm(len(self.slots), generator=self.gen)[:n]
        x = self.slots[index]
        fresh = torch.rand(x.shape, generator=self.gen) * 2 - 1
        empty = x.isnan().flatten(1).any(1)
        empty |= torch.rand(n, generator=self.gen) < 0.05
        x = torch.where(empty[:, None, None, None], fresh, x)
        self.age[index] = torch.where(empty, 0.0, self.age[index])
        return index, x

    def put(self, index, x):
        self.slots[index] = x
        self.age[index] += 1

    def forget(self):
        self.slots.fill_(float("nan"))
        self.age.fill_(float("nan"))


def langevin(energy, x, steps, gen, size=2.0, noise=0.01):
    for p in energy.parameters():
        p.requires_grad_(False)
    x = x.clone()
    for _ in range(steps):
        x = x.detach().requires_grad_(True)
        slope, = torch.autograd.grad(energy(x).sum(), x)
        x = (x - size * slope.clamp(-0.05, 0.05) + noise * torch.randn(x.shape, generator=gen)).clamp(-1.5, 1.5)
    for p in energy.parameters():
        p.requires_grad_(True)
    return x.detach()


def main(steps=48, batch=24):
    torch.manual_seed(0)
    ferns = FernPatches(1)
    energy = Energy()
    replay = Replay(96, ferns.side, 2)
    noise = torch.Generator().manual_seed(3)
    opt = torch.optim.Adam(energy.parameters(), lr=2e-3, betas=(0.0, 0.99))
    for step in range(1, steps + 1):
        if step == 30:
            replay.forget()                # the pane has been changed: all chains start again
        real = ferns.batch(batch)
        index, start = replay.draw(batch)
        fake = langevin(energy, start, 10, noise)
        replay.put(index, fake)
        e_real, e_fake = energy(real), energy(fake)
        contrast = e_real.mean() - e_fake.mean()
        loss = contrast + 0.05 * (e_real ** 2 + e_fake ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        old = replay.age[replay.age >= 4]
        print(f"{step:3d} loss {loss.item():+.6f} real {e_real.mean().item():+.5f} fake {e_fake.mean().item():+.5f} "
              f"mean age {replay.age.mean().item():.3f} veterans {F.relu(old).mean().item():.3f}", flush=True)
    print("empty slots", int(replay.age.isnan().sum()))


if __name__ == "__main__":
    main()
