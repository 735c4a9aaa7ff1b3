# Ground vibration near a quarry, trained with per-sample clipping and noise (householders' readings are private).
# torch.func for the per-sample gradients, Lookahead around SGD. Inputs are in raw units (micrometres per second,
# up to 1e5), the loss is a squared error in those units and therefore enormous; clipping keeps every update small.
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap


class Lookahead:
    """k fast steps, then the slow weights go `alpha` of the way (Zhang et al. 2019)."""

    def __init__(self, inner, k=5, alpha=0.5):
        self.inner, self.k, self.alpha, self.t = inner, k, alpha, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]

    def zero_grad(self):
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.t += 1
        if self.t % self.k:
            return False
        for group, slow in zip(self.inner.param_groups, self.slow):
            for p, s in zip(group["params"], slow):
                s.add_(p - s, alpha=self.alpha)
                p.copy_(s)
        return True


class PrivateGradients:
    def __init__(self, model, clip, sigma, generator):
        self.model, self.clip, self.sigma, self.gen = model, clip, sigma, generator
        self.per_sample = vmap(grad_and_value(self._one), in_dims=(None, 0, 0))

    def _one(self, params, x, y):
        pred = functional_call(self.model, params, (x.unsqueeze(0),)).squeeze()
        return (pred * 1e4 - y).square()

    def __call__(self, x, y):
        params = {k: v.detach() for k, v in self.model.named_parameters()}
        grads, losses = self.per_sample(params, x, y)
        norms = torch.sqrt(sum(g.flatten(1).square().sum(1) for g in grads.values()))
        factor = (self.clip / (norms + 1e-6)).clamp(max=1.0)
        for name, p in self.model.named_parameters():
            g = torch.einsum("n,n...->...", factor, grads[name])
            noise = torch.randn(g.shape, generator=self.gen) * self.sigma * self.clip
            p.grad = (g + noise) / len(x)
        return losses.mean(), (factor < 1).float().mean(), norms.max()


def blasts(n, gen):
    charge = torch.rand(n, generator=gen) * 400 + 20            # kg
    distance = torch.rand(n, generator=gen) * 700 + 350         # m
    scaled = distance / charge.sqrt()
    ppv = 3e6 * scaled.pow(-1.4) * torch.exp(0.2 * torch.randn(n, generator=gen))
    return torch.stack([charge.log(), distance.log(), scaled.log()], 1) - torch.tensor([5.2, 6.1, 3.5]), ppv


def main():
    torch.manual_seed(404)
    gen = torch.Generator().manual_seed(17)
    model = nn.Sequential(nn.Linear(3, 16), nn.Softplus(), nn.Linear(16, 1))
    private = PrivateGradients(model, clip=1.0, sigma=0.1, generator=gen)
    opt = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
    for step in range(1, 51):
        x, y = blasts(32, gen)
        opt.zero_grad()
        loss, clipped, biggest = private(x, y)
        synced = opt.step()
        print(f"{step:3d} loss {loss.item():.6e} clipped {clipped.item():.3f} largest norm {biggest.item():.4e}"
              + (" *" if synced else ""))
    print("done", round(sum(p.sum().item() for p in model.parameters()), 5))


if __name__ == "__main__":
    main()
