"""Neural displacement field of an elastic plate, energy minimised column by column."""
import torch
from torch import nn

torch.manual_seed(9)
torch.set_num_threads(1)
H = 0.125


class PrincipalStretch(torch.autograd.Function):
    """Eigenvalues of the symmetric 2x2 matrix [[a, b], [b, c]]."""

    @staticmethod
    def forward(ctx, a, b, c):
        radius = torch.sqrt(((a - c) / 2) ** 2 + b ** 2)
        ctx.save_for_backward(a, b, c, radius)
        return (a + c) / 2 + radius, (a + c) / 2 - radius

    @staticmethod
    def backward(ctx, g1, g2):
        a, b, c, radius = ctx.saved_tensors
        tilt = (a - c) / (4 * radius)
        shear = b / radius
        return g1 * (0.5 + tilt) + g2 * (0.5 - tilt), (g1 - g2) * shear, g1 * (0.5 - tilt) + g2 * (0.5 + tilt)


class Plate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))

    def forward(self, xy):
        return xy + (xy[..., :1] - H).clamp(min=0.0) * self.net(xy)


def column(i):
    corner = torch.tensor([[i * H, j * H] for j in range(8)])
    return corner, corner + torch.tensor([H, 0.0]), corner + torch.tensor([0.0, H])


plate = Plate()
opt = torch.optim.Adam(plate.parameters(), lr=5e-3)
step = 0
for sweep in range(3):
    for i in reversed(range(8)):
        step += 1
        p, q, r = (plate(v) for v in column(i))
        F = torch.stack([q - p, r - p], dim=-1) / H
        C = F.transpose(1, 2) @ F
        l1, l2 = PrincipalStretch.apply(C[:, 0, 0], C[:, 0, 1], C[:, 1, 1])
        energy = ((l1 - 1) ** 2 + (l2 - 1) ** 2).mean() - 0.05 * (q - column(i)[1])[:, 0].mean()
        opt.zero_grad()
        energy.backward()
        print(f"step {step:2d} column {i} energy {energy.item():.7f}")
        opt.step()
print("checksum", sum(w.abs().sum().item() for w in plate.parameters()))
