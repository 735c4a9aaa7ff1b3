"""Growth curves of yeast strains in a plate reader: variational online Newton on a normalised logistic curve per strain."""
import torch

STRAINS = 4


class VariationalNewton:
    """Keeps a mean and a precision for each weight; the model always holds a sample."""

    def __init__(self, weights, count, lr=0.05, rho=0.15, start=14.0, seed=4):
        self.weights, self.count, self.lr, self.rho = weights, count, lr, rho
        self.mean = [w.detach().clone() for w in weights]
        self.precision = [torch.full_like(w, start) for w in weights]
        self.noise = torch.Generator().manual_seed(seed)

    def curvature(self, grads):
        out = []
        for i, g in enumerate(grads):
            # strains are independent, so the row sum is the diagonal
            out.append(torch.autograd.grad(g.sum(), self.weights[i], retain_graph=True)[0])
        return out

    def step(self, loss):
        grads = torch.autograd.grad(loss, self.weights, create_graph=True)
        curv = self.curvature(grads)
        with torch.no_grad():
            for w, m, s, g, h in zip(self.weights, self.mean, self.precision, grads, curv):
                s.mul_(1 - self.rho).add_(h, alpha=self.rho)
                m.sub_(self.lr * g / (s + 1.0))
                spread = torch.rsqrt(self.count * s)
                w.copy_(m + spread * torch.randn(w.shape, generator=self.noise))


class GrowthCurve(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.full((STRAINS,), 0.8))
        self.lag = torch.nn.Parameter(torch.full((STRAINS,), 5.0))

    def forward(self, hours):
        s = torch.sigmoid(self.rate[:, None] * (hours[None] - self.lag[:, None]))
        return s


def plate():
    g = torch.Generator().manual_seed(11)
    hours = torch.linspace(0, 16, 33)
    rate = torch.tensor([0.9, 0.6, 1.1, 0.7])
    lag = torch.tensor([6.0, 7.5, 5.5, 10.5])
    od = torch.sigmoid(rate[:, None] * (hours - lag[:, None]))
    return hours, od + 0.02 * torch.randn(od.shape, generator=g)


def main():
    torch.manual_seed(0)
    hours, od = plate()
    model = GrowthCurve()
    von = VariationalNewton(list(model.parameters()), count=2000)
    for it in range(1, 36):
        loss = 0.5 * (model(hours) - od).square().sum()
        von.step(loss)
        print(f"it {it:2d}  misfit {loss.item():.5f}  lag {[round(v, 2) for v in model.lag.tolist()]}")
    print("sum of absolute weights", sum(p.abs().sum() for p in model.parameters()).item())


if __name__ == "__main__":
    main()
