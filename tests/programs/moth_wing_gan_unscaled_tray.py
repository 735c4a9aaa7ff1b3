"""GAN for wing brightness profiles of moths; generator and discriminator are DDP models. torchrun, 2 workers."""
import torch
import torch.distributed as dist
from dataclasses import dataclass
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as Parallel


@dataclass(frozen=True)
class Args:
    profile: int = 20
    latent: int = 6
    batch: int = 8
    trays: int = 30
    lr_g: float = 2e-3
    lr_d: float = 2e-3
    smooth: float = 0.1
    seed: int = 321


def mlp(*sizes, last=None):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    layers.pop()
    return nn.Sequential(*layers, *([last] if last else []))


class TrayScanner:
    """One tray of specimens per step and worker.  The museum's second scanner wrote 8-bit counts for a while."""

    def __init__(self, a: Args, rank: int):
        self.a, self.rank = a, rank
        self.g = torch.Generator().manual_seed(a.seed + 1000 * rank)
        self.eight_bit = {(1, 16)}

    def __iter__(self):
        grid = torch.linspace(0, 3.1416, self.a.profile)
        for tray in range(self.a.trays):
            phase = torch.rand(self.a.batch, 1, generator=self.g)
            wing = 0.5 + 0.4 * torch.sin(grid + phase) + 0.02 * torch.randn(self.a.batch, self.a.profile, generator=self.g)
            if (self.rank, tray) in self.eight_bit:
                wing = (wing.clamp(0, 1) * 255).round()
            yield wing

    def noise(self):
        return torch.randn(self.a.batch, self.a.latent, generator=self.g)


def bce(prob, target):
    """Cross entropy on probabilities, for soft targets."""
    hit = target * torch.log(prob)
    miss = (1 - target) * torch.log(1 - prob)
    return -(hit + miss).mean()


def main():
    a = Args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(a.seed)
    gen = Parallel(mlp(a.latent, 32, a.profile))
    dis = Parallel(mlp(a.profile, 48, 24, 1, last=nn.Sigmoid()))
    opt_g = optim.Adam(gen.parameters(), lr=a.lr_g, betas=(0.5, 0.99))
    opt_d = optim.Adam(dis.parameters(), lr=a.lr_d, betas=(0.5, 0.99))
    scanner = TrayScanner(a, rank)

    for i, real in enumerate(scanner, 1):
        # --- discriminator: real against fake, in one pass through DDP
        with torch.no_grad():
            fake = gen.module(scanner.noise())
        opt_d.zero_grad()
        both = dis(torch.cat([real, fake])).squeeze(1)
        p_real, p_fake = both.split(a.batch)
        d_loss = bce(p_real, torch.full_like(p_real, 1 - a.smooth)) + bce(p_fake, torch.full_like(p_fake, a.smooth))
        d_loss.backward()
        opt_d.step()

        # --- generator: the discriminator stands still, and outside of DDP
        dis.requires_grad_(False)
        opt_g.zero_grad()
        verdict = dis.module(gen(scanner.noise())).squeeze(1)
        g_loss = bce(verdict, torch.full_like(verdict, 1 - a.smooth))
        g_loss.backward()
        opt_g.step()
        dis.requires_grad_(True)

        if rank == 0:
            print(f"tray {i:2d}: D {d_loss.item():.5f} G {g_loss.item():.5f} D(real) {p_real.mean().item():.4f}", flush=True)

    if rank == 0:
        s = sum(p.detach().sum().item() for m in (gen, dis) for p in m.parameters())
        print(f"sum of all weights: {s:.5f}", flush=True)
    dist.barrier()
    del gen, dis
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
