"""Dose of antibiotics for calves: a Michaelis-Menten clearance fitted with our own autograd function.

The clearance is w * softplus(z) * c / (km + softplus(z)).  Written as one Function, the graph keeps three tensors in the
place of nine; on the tablet in the cowshed that made the difference.
"""
import torch
from torch import nn


class Clearance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, w, c, km):
        s = nn.functional.softplus(z)
        ctx.save_for_backward(z, s, w, c)
        ctx.km = km
        return w * c * s / (km + s)

    @staticmethod
    def backward(ctx, grad):
        z, s, w, c = ctx.saved_tensors
        km = ctx.km
        e = torch.exp(z)
        ds = e / (1 + e)                              # softplus' = sigmoid
        dz = grad * w * c * km / (km + s) ** 2 * ds
        dw = grad * c * s / (km + s)
        dc = grad * w * s / (km + s)
        return dz, dw.sum_to_size(w.shape), dc, None


class CalfModel(nn.Module):
    def __init__(self, km=2.0):
        super().__init__()
        self.encode = nn.Linear(3, 10)
        self.z = nn.Linear(10, 1)
        self.allometric = nn.Linear(1, 1)
        self.vmax = nn.Parameter(torch.ones(1))
        self.km = km
        with torch.no_grad():
            self.allometric.weight.fill_(1.0)

    def forward(self, weight, vitals, conc):
        z = self.z(torch.tanh(self.encode(vitals))) + self.allometric(weight / 50.0)
        return Clearance.apply(z.squeeze(-1), self.vmax, conc, self.km)


class Herd:
    def __init__(self, batch, seed=12):
        self.g = torch.Generator().manual_seed(seed)
        self.batch = batch
        self.visit = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.visit += 1
        g, n = self.g, self.batch
        weight = 35 + 60 * torch.rand(n, 1, generator=g)
        vitals = torch.randn(n, 3, generator=g)
        conc = 0.5 + 4 * torch.rand(n, generator=g)
        s = nn.functional.softplus(weight[:, 0] / 60 + 0.4 * vitals[:, 0])
        cleared = 1.4 * conc * s / (2.0 + s) + 0.02 * torch.randn(n, generator=g)
        if self.visit == 21:
            weight[4] = weight[4] * 1000            # the new scale in stall 4 reports grams
        return weight, vitals, conc, cleared


def lookahead(slow, fast, alpha=0.5):
    with torch.no_grad():
        for s, f in zip(slow, fast):
            s.lerp_(f, alpha)
            f.copy_(s)


def train(visits=40):
    torch.manual_seed(77)
    torch.set_num_threads(1)
    model = CalfModel()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    slow = [p.detach().clone() for p in model.parameters()]
    for visit, (weight, vitals, conc, cleared) in zip(range(1, visits + 1), Herd(20)):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(weight, vitals, conc), cleared)
        loss.backward()
        opt.step()
        print(f"visit {visit:2d}  mse {loss.item():.7f}")
        if visit % 10 == 0 and visit != visits:
            lookahead(slow, model.parameters())
    return model


m = train()
print("vmax and all the rest:", sum(p.sum().item() for p in m.parameters()))
