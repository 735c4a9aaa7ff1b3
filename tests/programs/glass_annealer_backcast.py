"""Backcast: how hot was the gather when it left the glory hole?

Four zones of a vessel (lip, wall, base, punty) lose heat to each other and to the room.
The pyrometer sees them when the annealer closes; we want the profile at the moment of leaving.
    x(0) = expm(+K * minutes) x(minutes)
"""
import torch
from torch import nn

torch.manual_seed(41)
gen = torch.Generator().manual_seed(7)

ZONES = 4
TRUE_K = torch.tensor([[0.62, -0.11, 0.00, 0.00],
                       [-0.11, 0.48, -0.09, 0.00],
                       [0.00, -0.09, 0.39, -0.14],
                       [0.00, 0.00, -0.14, 0.71]])


def logbook(n=8 * 36):
    """One row per vessel: profile at the pyrometer, time away from the heat, profile at the start."""
    start = 9.0 + 2.0 * torch.rand(n, ZONES, generator=gen)          # hundreds of kelvin above room
    away = 0.5 + 2.5 * torch.rand(n, generator=gen)                  # minutes
    seen = torch.linalg.matrix_exp(-TRUE_K * away[:, None, None]) @ start[:, :, None]
    seen = seen[..., 0] + 0.01 * torch.randn(n, ZONES, generator=gen)
    rows = [dict(seen=s, away=float(a), unit="min", start=x) for s, a, x in zip(seen, away, start)]
    rows[133].update(away=192.0, unit="")                            # copied from the night shift's sheet
    return rows


class Backcast(nn.Module):
    def __init__(self):
        super().__init__()
        self.K = nn.Parameter(0.5 * torch.eye(ZONES))
        self.emissivity = nn.Linear(ZONES, ZONES)
        nn.init.eye_(self.emissivity.weight)
        nn.init.zeros_(self.emissivity.bias)

    def forward(self, seen, away):
        x = self.emissivity(seen)
        flow = torch.linalg.matrix_exp(self.K * away[:, None, None])
        return (flow @ x.unsqueeze(-1)).squeeze(-1)


rows = logbook()
net = Backcast()
opt = torch.optim.Adam([{"params": [net.K], "lr": 6e-3}, {"params": net.emissivity.parameters(), "lr": 2e-3}])

print("vessels", len(rows))
for k in range(0, len(rows), 8):
    part = rows[k:k + 8]
    seen = torch.stack([r["seen"] for r in part])
    away = torch.tensor([r["away"] for r in part])
    start = torch.stack([r["start"] for r in part])
    off = (net(seen, away) - start) / 10.0
    loss = off.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"vessels up to {k + 8:3d}  step {k // 8 + 1:2d}  squared miss {loss.item():.5f}")

print("cooling rates", [round(v, 3) for v in net.K.detach().diagonal().tolist()])
print("sum of squares of all weights", sum(float(p.detach().pow(2).sum()) for p in net.parameters()))
