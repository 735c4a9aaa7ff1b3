"""Cisterns of a hill village: which valve coefficient explains the levels that the village has logged?

Three cisterns drain into each other (Torricelli).  The levels are scanned over the hours of a day with explicit Euler steps;
a day's scan is checkpointed in pieces of six hours, and the levels at midnight start the next day (truncated BPTT).
"""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(1204)
torch.set_num_threads(1)

HOURS, PIECE, DT = 24, 6, 1.0
AREA = torch.tensor([4.0, 6.0, 5.0])
G2 = (2 * 9.81) ** 0.5


def rain(day):
    """Cubic metres per hour into the first cistern. From day 20 on the spring fails."""
    hours = torch.arange(HOURS)
    spring = 3.2 if day < 20 else 3.2 * 0.5 ** (day - 19)
    return spring * (1 + 0.25 * torch.sin(hours / 24 * 6.2832 + day))


def logged(days):
    """The village's own record, by a fine integration; a float valve closes before a cistern is dry."""
    true = torch.tensor([0.55, 0.6, 0.5])
    h = torch.tensor([1.5, 1.3, 1.6])
    out = []
    for day in range(days):
        rows = []
        for inflow in rain(day):
            for _ in range(20):
                flow = true * G2 * torch.sqrt(h.clamp(min=0.0))
                into = torch.stack([inflow, flow[0], flow[1]])
                h = (h + DT / 20 * (into - flow) / AREA).clamp(min=0.0)
            rows.append(h)
        out.append(torch.stack(rows))
    return out


class Valves(nn.Module):
    """Coefficient of each valve as a function of the hour, for the villagers turn them."""

    def __init__(self):
        super().__init__()
        self.hour = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 3))

    def forward(self, hours):
        angle = hours / 24 * 6.2832
        return torch.sigmoid(self.hour(torch.stack([angle.sin(), angle.cos()], -1)))


def piece(h, inflow, coef):
    levels = []
    for t in range(PIECE):
        flow = coef[t] * G2 * torch.sqrt(h)
        into = torch.cat([inflow[t:t + 1], flow[:2]])
        h = h + DT * (into - flow) / AREA
        levels.append(h)
    return h, torch.stack(levels)


valves = Valves()
opt = torch.optim.Adam(valves.parameters(), lr=0.02)
record = logged(40)
level = torch.tensor([1.5, 1.3, 1.6])

for day in range(40):
    coef = valves(torch.arange(HOURS, dtype=torch.float32))
    inflow, h, scanned = rain(day), level, []
    for a in range(0, HOURS, PIECE):
        h, part = checkpoint(piece, h, inflow[a:a + PIECE], coef[a:a + PIECE], use_reentrant=False)
        scanned.append(part)
    loss = (torch.cat(scanned) - record[day]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    level = h.detach()
    print(f"day {day + 1:2d} loss {loss.item():.6f} midnight {' '.join(f'{v:.3f}' for v in level.tolist())}")

print(f"valves {sum(p.sum().item() for p in valves.parameters()):.6f}")
