"""Single-diode model of a solar cell, fitted to measured I-V curves with L-BFGS."""
import torch
from torch import nn

torch.manual_seed(1)
VT = 0.0257


class Diode(nn.Module):
    def __init__(self):
        super().__init__()
        self.photo = nn.Parameter(torch.tensor(2.0))
        self.log_i0 = nn.Parameter(torch.tensor(-14.0))
        self.ideality = nn.Parameter(torch.tensor(2.0))
        self.shunt = nn.Parameter(torch.tensor(0.1))

    def forward(self, v):
        dark = self.log_i0.exp() * torch.expm1(v / (self.ideality * VT))
        return self.photo - dark - self.shunt * v


def cell(v, day):
    i = 3.1 + 0.05 * day - 2e-9 * torch.expm1(v / (1.25 * VT)) - 0.2 * v
    return i + 0.01 * torch.randn_like(v)


model = Diode()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=6, history_size=6)
v = torch.linspace(0.0, 0.68, 40)
for day in range(8):
    current = cell(v, day)

    def closure():
        optimizer.zero_grad()
        loss = (model(v) - current).pow(2).mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    print(f"day {day} mse {loss.item():.6f} n {model.ideality.item():.4f}")
print("parameters", sum(p.item() ** 2 for p in model.parameters()))
