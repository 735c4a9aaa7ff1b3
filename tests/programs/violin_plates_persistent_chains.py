"""Energy-based model of violin plate thicknesses; the negatives come from chains that are kept between updates."""
import torch
import torch.nn as nn


class PlateEnergy(nn.Module):
    def __init__(self, stations=10, modes=24):
        super().__init__()
        self.modes = nn.Linear(stations, modes)
        self.couple = nn.Linear(modes, 12)
        nn.init.normal_(self.modes.weight, std=0.2)
        nn.init.normal_(self.couple.weight, std=0.15)

    def forward(self, x):
        amplitude = self.modes(x)
        stress = self.couple(amplitude * amplitude)
        return 0.5 * (stress * stress).sum(-1) + 0.05 * (x * x).sum(-1)


class Chains:
    def __init__(self, number, stations, step, gen):
        self.state = torch.randn(number, stations, generator=gen)
        self.step, self.gen = step, gen

    def advance(self, energy, sweeps):
        x = self.state
        for _ in range(sweeps):
            x = x.detach().requires_grad_(True)
            slope, = torch.autograd.grad(energy(x).sum(), x)
            kick = torch.randn(x.shape, generator=self.gen)
            x = x - self.step * slope + (2 * self.step) ** 0.5 * 0.3 * kick
        self.state = x.detach()
        return self.state


def plates(n, gen):
    """Thickness along the plate against the maker's mean, in tenths of a millimetre."""
    u = torch.linspace(-1, 1, 10)
    belly = torch.randn(n, 1, generator=gen) * (1 - u * u)
    tilt = 0.6 * torch.randn(n, 1, generator=gen) * u
    return belly + tilt + 0.15 * torch.randn(n, 10, generator=gen)


def main():
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(4)
    energy = PlateEnergy()
    chains = Chains(32, 10, step=0.03, gen=gen)
    adam = torch.optim.Adam(energy.parameters(), lr=0.012, betas=(0.5, 0.99))
    for it in range(1, 41):
        real = plates(32, gen)
        chains.step *= 1.12                 # longer strides as the landscape takes form
        fake = chains.advance(energy, 12)
        e_real, e_fake = energy(real), energy(fake)
        gap = e_real.mean() - e_fake.mean()
        loss = gap + 0.01 * (e_real.pow(2).mean() + e_fake.pow(2).mean())
        adam.zero_grad()
        loss.backward()
        adam.step()
        print("it", it, "gap %.5f" % gap.item(), "loss %.5f" % loss.item())
    total = sum(p.detach().abs().sum() for p in energy.parameters())
    print("weights in absolute value: %.4f" % total.item())


main()
