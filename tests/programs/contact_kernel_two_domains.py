import torch
from torch import nn, optim


def chain(n, gen):
    """A relaxed random walk with 3.8 A steps: the start structure."""
    step = torch.randn(n, 3, generator=gen)
    step = 3.8 * step / step.norm(dim=1, keepdim=True)
    walk = torch.cumsum(step, 0)
    return (walk - walk.mean(0)) * 0.8


class Refiner(nn.Module):
    """Moves C-alpha atoms by a small network over sequence position and residue type."""

    def __init__(self, start, aa):
        super().__init__()
        self.register_buffer("start", start)
        self.register_buffer("aa", aa)
        n = len(aa)
        pos = torch.arange(n) / n
        self.register_buffer("pos", torch.cat([torch.stack([torch.sin(k * 3.1416 * pos), torch.cos(k * 3.1416 * pos)], 1)
                                               for k in (1, 2, 4, 8)], 1))
        self.res = nn.Embedding(20, 8)
        self.body = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.shift = nn.Linear(48, 3)

    def forward(self):
        h = self.body(torch.cat([self.pos, self.res(self.aa)], 1))
        return self.start + 10.0 * self.shift(h)


def pair_d2(xyz):
    diff = xyz[:, None] - xyz[None]
    return (diff * diff).sum(-1)


def crosslink_term(d2, links, freq, sigma=6.0):
    # kernel of an MS cross-link: probability that the linker spans the pair, against the measured frequency
    p = torch.exp(-d2[links[0], links[1]] / (2 * sigma ** 2))
    return torch.nn.functional.kl_div(p.log(), freq, reduction="sum") + (p - freq).sum()


def main():
    gen = torch.Generator().manual_seed(90)
    torch.manual_seed(90)
    n = 64
    net = Refiner(chain(n, gen), torch.randint(20, (n,), generator=gen))
    # intra-domain links are frequent, one link between the domains was seen in one spectrum of hundreds
    links = torch.tensor([[2, 5, 9, 14, 20, 36, 40, 45, 50, 3], [8, 11, 17, 21, 27, 43, 46, 52, 58, 61]])
    freq = torch.tensor([.5, .4, .45, .6, .5, .4, .55, .5, .5, .004])
    i = torch.arange(n - 1)
    opt = optim.Adamax(net.parameters(), lr=3e-3)
    rg_saxs = 34.0
    for it in range(90):
        opt.zero_grad()
        xyz = net()
        d2 = pair_d2(xyz)
        bonds = ((d2[i, i + 1] + 1e-3).sqrt() - 3.8).pow(2).mean()
        rg = (xyz - xyz.mean(0)).pow(2).sum(1).mean().sqrt()
        xl = crosslink_term(d2, links, freq)
        loss = 0.3 * bonds + (rg - rg_saxs).pow(2) + 0.3 * xl
        loss.backward()
        print(f"{it + 1:3d} loss={loss.item():.5f} rg={rg.item():.4f} bonds={bonds.item():.4f} xl={xl.item():.4f}")
        opt.step()
    print("final", sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
