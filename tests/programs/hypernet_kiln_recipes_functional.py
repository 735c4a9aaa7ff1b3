"""Hypernetwork for kiln firings: from a clay recipe it writes the weights of a little curve network
(temperature -> shrinkage), evaluated through torch.func for all recipes at once.

All functional: parameters are dicts, gradients come from grad_and_value, the update is Lion by hand.
Shrinkage is kept in parts per billion as the dilatometer writes it: the losses are of the order of 1e11.
"""
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

torch.manual_seed(1280)
RECIPE, CURVE = 5, 16
PPB = 1e9


class CurveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, CURVE)
        self.b = nn.Linear(CURVE, 1)

    def forward(self, t):
        return self.b(torch.tanh(self.a(t))).squeeze(-1)


curve = CurveNet().requires_grad_(False)          # only its shape is used
shapes = {k: p.shape for k, p in curve.named_parameters()}
sizes = [s.numel() for s in shapes.values()]

hyper = nn.Sequential(nn.Linear(RECIPE, 32), nn.SiLU(), nn.Linear(32, sum(sizes)))
theta = {k: p.detach().clone() for k, p in hyper.named_parameters()}


def unpack(flat):
    return {k: piece.reshape(s) for (k, s), piece in zip(shapes.items(), flat.split(sizes))}


def one_firing(theta, recipe, temps, ppb, valid):
    weights = unpack(functional_call(hyper, theta, (recipe,)))
    pred = functional_call(curve, weights, (temps[:, None],)) * 1e6
    err = torch.where(valid, pred - ppb, 0.0)
    return (err ** 2).sum() / valid.sum().clamp(min=1)


def objective(theta, batch):
    per = vmap(one_firing, in_dims=(None, 0, 0, 0, 0))(theta, *batch)
    return per.sum()                              # summed: large firings days weigh more


def firings(n, g):
    recipe = torch.rand(n, RECIPE, generator=g)
    recipe = recipe / recipe.sum(-1, keepdim=True)
    temps = torch.rand(n, 24, generator=g) * 2 - 1
    knee = (recipe @ torch.linspace(-1, 1, RECIPE))[:, None]
    shrink = 1e-4 * torch.sigmoid(6 * (temps - knee)) + 1e-6 * torch.randn(n, 24, generator=g)
    valid = torch.rand(n, 24, generator=g) > 0.2
    valid[0] = n % 3 != 0                         # a firing whose thermocouple failed: no valid reading at all
    ppb = torch.where(valid, shrink * PPB, float("inf"))     # the logger's "overrange"
    return recipe, temps, ppb, valid


class Lion:
    def __init__(self, theta, lr, b1=0.9, b2=0.98):
        self.m = {k: torch.zeros_like(v) for k, v in theta.items()}
        self.lr, self.b1, self.b2 = lr, b1, b2

    def reset(self):
        for v in self.m.values():
            v.zero_()

    def __call__(self, theta, grads):
        new = {}
        for k, v in theta.items():
            u = torch.sign(self.b1 * self.m[k] + (1 - self.b1) * grads[k])
            new[k] = v - self.lr * u
            self.m[k] = self.b2 * self.m[k] + (1 - self.b2) * grads[k]
        return new


g = torch.Generator().manual_seed(99)
rule = Lion(theta, lr=2e-3)
step_fn = grad_and_value(objective)
for step in range(1, 51):
    grads, loss = step_fn(theta, firings(4 + step % 5, g))
    if step == 30:
        rule.reset()
    theta = rule(theta, grads)
    print(f"firing day {step:2d} sum of squares {loss.item():.4e}")
print("theta", f"{sum(v.double().sum().item() for v in theta.values()):.6f}")
