"""Dictionary learning on hyperspectral mineral spectra, with sparse atoms of unit length.

The optimizer takes a gradient step, shrinks the atoms towards zero (proximal
step of an l1 penalty) and puts them back on the unit sphere.
"""
import torch
from torch import nn


class ProximalSphereSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, penalty=0.01):
        super().__init__(params, dict(lr=lr, penalty=penalty))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            shrink = group["lr"] * group["penalty"]
            for atoms in group["params"]:
                if atoms.grad is None:
                    continue
                moved = atoms - group["lr"] * atoms.grad
                sparse = moved.sign() * (moved.abs() - shrink).clamp(min=0.0)
                atoms.copy_(sparse / sparse.norm(dim=1, keepdim=True))


class Dictionary(nn.Module):
    def __init__(self, n_atoms, n_bands):
        super().__init__()
        start = torch.randn(n_atoms, n_bands)
        self.atoms = nn.Parameter(start / start.norm(dim=1, keepdim=True))

    def encode(self, spectra, threshold=0.1):
        return torch.relu(spectra @ self.atoms.T - threshold)

    def forward(self, spectra):
        return self.encode(spectra) @ self.atoms


def mineral_spectra(n, n_bands, n_minerals=6):
    centre = torch.linspace(2, n_bands - 3, n_minerals)
    band = torch.arange(n_bands, dtype=torch.float32)
    pure = torch.exp(-0.5 * ((band[None] - centre[:, None]) / 1.5) ** 2)
    share = torch.distributions.Dirichlet(torch.full((n_minerals,), 0.4)).sample((n,))
    return share @ pure + 0.01 * torch.randn(n, n_bands)


def penalty_schedule(step, first=0.02, doubling=3):
    """Sparser and sparser: the penalty doubles every few steps."""
    return first * 2.0 ** (step / doubling)


def run(steps=36, batch=32):
    torch.manual_seed(17)
    spectra = mineral_spectra(512, 24)
    model = Dictionary(10, 24)
    opt = ProximalSphereSGD(model.parameters(), lr=0.2)
    for step in range(1, steps + 1):
        for group in opt.param_groups:
            group["penalty"] = penalty_schedule(step)
        x = spectra[torch.randint(0, len(spectra), (batch,))]
        loss = (model(x) - x).square().sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:2d} residual {loss.item():.6f} penalty {group['penalty']:.4f}")
    return model


if __name__ == "__main__":
    dictionary = run()
    print("finite", int(all(p.isfinite().all() for p in dictionary.parameters())))
