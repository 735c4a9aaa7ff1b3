"""Generate crackle patterns of raku glaze (16x16) with a hinge GAN in bfloat16 autocast and an averaged generator."""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SIZE, NOISE = 16, 12


def shards(n, gen):
    """Cracks are the borders between the cells of random points."""
    seeds = torch.rand(n, 6, 2, generator=gen) * SIZE
    axis = torch.arange(SIZE) + 0.5
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(1, -1, 1, 2)
    two = (grid - seeds[:, None]).norm(dim=-1).topk(2, largest=False).values
    return torch.tanh(two[..., 1] - two[..., 0] - 0.8).view(n, 1, SIZE, SIZE)


def make_critic():
    return nn.Sequential(
        nn.Conv2d(1, 12, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(12, 24, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(24 * 16, 1))


class Kiln(nn.Module):
    def __init__(self):
        super().__init__()
        self.clay = nn.Linear(NOISE, 24 * 16)
        self.fire = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(),
                                  nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.fire(self.clay(z).view(-1, 24, 4, 4))


def train(rounds=36, batch=24):
    torch.manual_seed(55)
    gen = torch.Generator().manual_seed(6)
    kiln, critic = Kiln(), make_critic()
    shelf = AveragedModel(kiln, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    opt_k = torch.optim.Adam(kiln.parameters(), lr=2e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
    k_loss = float("nan")  # the kiln has not been lit yet
    for r in range(1, rounds + 1):
        if r == 19:  # an old critic is replaced by a fresh one
            critic = make_critic()
            opt_c = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
        real = shards(batch, gen)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            fake = kiln(torch.randn(batch, NOISE, generator=gen))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            on_real, on_fake = critic(real), critic(fake)
        c_loss = (1 - on_real.float()).relu().mean() + (1 + on_fake.float()).relu().mean()
        opt_c.zero_grad()
        c_loss.backward()
        opt_c.step()

        if r % 3 == 0:
            for p in critic.parameters():
                p.requires_grad_(False)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                judged = critic(kiln(torch.randn(batch, NOISE, generator=gen)))
            loss = -judged.float().mean()
            opt_k.zero_grad()
            loss.backward()
            opt_k.step()
            shelf.update_parameters(kiln)
            for p in critic.parameters():
                p.requires_grad_(True)
            k_loss = loss.item()
        print(f"round {r:2d}  critic {c_loss.item():.4f}  kiln {k_loss:.4f}")
    return critic, shelf.module


if __name__ == "__main__":
    critic, averaged = train()
    size = sum(p.detach().square().sum().item() for m in (critic, averaged) for p in m.parameters())
    print(f"squared weights of critic and averaged kiln: {size:.5f}")
