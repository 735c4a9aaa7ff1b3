"""Deflection of a loaded circular membrane: laplacian(u) = -1, u = 0 on the rim."""
import torch
from torch import nn

torch.manual_seed(131)
torch.set_num_threads(1)


class Membrane(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x, y):
        r = torch.sqrt(x * x + y * y)
        return (1 - r) * self.net(torch.stack([r, r * r], dim=1)).squeeze(1)


def derivative(u, x):
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0]


def residual(model, x, y):
    x, y = x.requires_grad_(), y.requires_grad_()
    u = model(x, y)
    lap = derivative(derivative(u, x), x) + derivative(derivative(u, y), y)
    return (lap + 1).square().mean()


axis = torch.arange(-10, 11) / 10
gx, gy = torch.meshgrid(axis, axis, indexing="ij")
inside = gx ** 2 + gy ** 2 < 0.98
px, py = gx[inside], gy[inside]
model = Membrane()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
step = 0
for epoch in range(3):
    for pick in torch.randperm(len(px)).split(32):
        step += 1
        loss = residual(model, px[pick], py[pick])
        opt.zero_grad()
        loss.backward()
        print(f"step {step} residual {loss.item():.6f}")
        opt.step()
print("checksum", sum(p.abs().sum().item() for p in model.parameters()))
