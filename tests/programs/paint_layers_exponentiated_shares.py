# Pigments in a paint cross-section: X-ray counts, layer after layer, explained by shares of known pigments.
import torch
from torch.optim import Optimizer

CHANNELS, PIGMENTS, SPOTS = 40, 5, 3
NAMES = ["lead white", "azurite", "vermilion", "ochre", "chalk"]


class ExponentiatedGradient(Optimizer):
    """Multiplicative steps on rows of shares that sum to one."""

    def __init__(self, params, lr=0.02):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.mul_(torch.exp(-group["lr"] * p.grad))
                p.div_(p.sum(-1, keepdim=True))


def library():
    energy = torch.linspace(0, 1, CHANNELS)
    lines = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    peaks = torch.exp(-0.5 * ((energy[None] - lines[:, None]) / 0.04) ** 2) + 1e-3
    return peaks / peaks.sum(1, keepdim=True)


def counts_at(depth, spectra, rng):
    """The top layers hold colour, the ground below them is chalk."""
    colour = torch.tensor([[0.5, 0.3, 0.1, 0.1, 0.0], [0.4, 0.1, 0.4, 0.1, 0.0], [0.6, 0.1, 0.1, 0.2, 0.0]])
    ground = torch.tensor([0.05, 0.0, 0.0, 0.05, 0.9]).expand(SPOTS, -1)
    mixture = colour if depth < 21 else ground
    return torch.poisson(400.0 * mixture @ spectra, generator=rng)


rng = torch.Generator().manual_seed(17)
spectra = library()
shares = torch.full((SPOTS, PIGMENTS), 1.0 / PIGMENTS, requires_grad=True)
log_tube_current = torch.tensor(5.5, requires_grad=True)
optimizers = [ExponentiatedGradient([shares], lr=2e-3), torch.optim.Adam([log_tube_current], lr=0.02)]

for depth in range(34):
    counts = counts_at(depth, spectra, rng)
    expected = log_tube_current.exp() * shares @ spectra
    deviance = (expected - counts * expected.log()).sum()
    for o in optimizers:
        o.zero_grad()
    deviance.backward()
    for o in optimizers:
        o.step()
    main_pigment = NAMES[int(shares[0].argmax())]
    print(f"depth {depth + 1:2d} um  deviance {deviance.item():11.3f}  spot 1: {main_pigment}")

print("sum of shares and tube current:", shares.detach().sum().item() + log_tube_current.item())
