"""Sips (Langmuir-Freundlich) adsorption isotherms of several materials, fitted together by gradient descent."""
import torch
from torch.func import vmap


def sips(pressure, capacity, affinity, exponent):
    loading = (affinity * pressure) ** exponent
    return capacity * loading / (1.0 + loading)


class IsothermModel(torch.nn.Module):
    def __init__(self, materials):
        super().__init__()
        self.capacity = torch.nn.Parameter(torch.full((materials,), 3.0))
        self.affinity = torch.nn.Parameter(torch.full((materials,), 1.5))
        self.exponent = torch.nn.Parameter(torch.full((materials,), 0.8))

    def forward(self, pressure):
        curves = vmap(sips, in_dims=(None, 0, 0, 0))
        return curves(pressure, self.capacity, self.affinity, self.exponent)


class IsothermFitter:
    """fit() and be done: model, optimizer and loop are inside."""

    def __init__(self, lr=0.02, momentum=0.9, epochs=60, report=print):
        self.lr, self.momentum, self.epochs, self.report = lr, momentum, epochs, report
        self.model = None

    def _misfit(self, pressure, uptake):
        residual = self.model(pressure) - uptake
        return residual.square().sum(1).mean()

    def _one_epoch(self, opt, pressure, uptake):
        opt.zero_grad()
        misfit = self._misfit(pressure, uptake)
        misfit.backward()
        opt.step()
        return misfit.item()

    def fit(self, pressure, uptake):
        self.model = IsothermModel(len(uptake))
        opt = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=self.momentum, nesterov=True)
        for epoch in range(1, self.epochs + 1):
            value = self._one_epoch(opt, pressure, uptake)
            self.report(f"epoch {epoch:3d}  misfit {value:.6f}")
        return self

    def parameters_finite(self):
        return all(p.isfinite().all() for p in self.model.parameters())


def laboratory_data():
    gen = torch.Generator().manual_seed(40)
    pressure = torch.logspace(-1.5, 1.0, 18)           # bar
    truth = [(4.2, 0.90, 0.85), (2.1, 0.03, 0.95), (5.5, 0.40, 0.70), (1.2, 2.00, 0.60)]
    uptake = torch.stack([sips(pressure, *t) for t in truth])
    return pressure, uptake + 0.01 * torch.randn(uptake.shape, generator=gen)


if __name__ == "__main__":
    torch.manual_seed(0)
    fitter = IsothermFitter().fit(*laboratory_data())
    print("finite", int(fitter.parameters_finite()))
