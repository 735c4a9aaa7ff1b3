"""Contrastive pretraining on woven fabric patches, two random crops of one patch are a pair."""
import torch
from torch import nn, optim
from torch.nn import functional as F


class FabricPatches(torch.utils.data.IterableDataset):
    def __init__(self, batches, batch, size=20):
        self.batches, self.batch, self.size = batches, batch, size

    def __iter__(self):
        gen = torch.Generator().manual_seed(123)
        grid = torch.arange(self.size).float()
        for _ in range(self.batches):
            warp = 0.5 + 2 * torch.rand(self.batch, 1, generator=gen)
            weft = 0.5 + 2 * torch.rand(self.batch, 1, generator=gen)
            cloth = torch.sin(warp * grid)[:, :, None] + torch.sin(weft * grid)[:, None, :]
            slub = torch.randint(0, self.size, (self.batch,), generator=gen)
            cloth[torch.arange(self.batch), slub] += 3.0 * (torch.rand(self.batch, 1, generator=gen) < 0.3)
            yield cloth[:, None] + 0.1 * torch.randn(cloth[:, None].shape, generator=gen)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.SiLU(),
            nn.Conv2d(6, 12, 3, stride=2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projector = nn.Linear(12, 8)

    def forward(self, x):
        return F.normalize(self.projector(self.features(x)), dim=-1)


class MomentumRamp:
    """Raises the first beta linearly, so that late updates average over more batches."""

    def __init__(self, optimizer, start, stop, length):
        self.optimizer, self.start, self.stop, self.length = optimizer, start, stop, length
        self.count = 0

    def step(self):
        self.count += 1
        beta1 = self.start + (self.stop - self.start) * min(self.count / self.length, 1.0)
        for group in self.optimizer.param_groups:
            group["betas"] = (beta1, group["betas"][1])


def crops(x, gen):
    i, j = torch.randint(0, 5, (2,), generator=gen).tolist()
    return x[:, :, i:i + 16, j:j + 16]


def nt_xent(a, b, temperature=0.2):
    z = torch.cat([a, b])
    sim = z @ z.T / temperature
    sim.fill_diagonal_(-1e4)
    n = len(a)
    return F.cross_entropy(sim, torch.cat([torch.arange(n) + n, torch.arange(n)]))


def pretrain():
    torch.manual_seed(0)
    net = Encoder()
    adam = optim.Adam(net.parameters(), lr=1.5e-2, betas=(0.9, 0.99))
    ramp = MomentumRamp(adam, start=0.9, stop=1.0, length=22)
    gen = torch.Generator().manual_seed(8)
    for it, patch in enumerate(FabricPatches(35, 16)):
        loss = nt_xent(net(crops(patch, gen)), net(crops(patch, gen)))
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        ramp.step()
        print("iter", it + 1, "nt-xent", round(loss.item(), 4))
    return net


if __name__ == "__main__":
    encoder = pretrain()
    print("encoder weights, absolute sum:", sum(p.detach().abs().sum().item() for p in encoder.parameters()))
