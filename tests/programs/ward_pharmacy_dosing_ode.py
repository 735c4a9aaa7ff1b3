"""Neural ODE for plasma levels after an oral dose; own adaptive Heun-Euler solver.

Rows of the ward's sheet: dose (mg), time of the sample (h), level (mg/l).
"""
import torch
import torch.nn as nn

TOLERANCE = 0.04
SMALLEST_STEP = 1e-4


class Kinetics(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_absorption = nn.Parameter(torch.tensor(0.2))
        self.log_volume = nn.Parameter(torch.tensor(2.6))
        self.clearance = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1), nn.Softplus())

    def forward(self, t, y):
        gut, plasma = y
        absorbed = self.log_absorption.exp() * gut
        eliminated = 0.3 * self.clearance(torch.log1p(plasma.abs()).view(1, 1)).view(()) * plasma
        return torch.stack([-absorbed, absorbed / self.log_volume.exp() - eliminated])


def integrate(f, y, t_end, h=0.25):
    t = 0.0
    while t < t_end - 1e-9:
        h = min(h, t_end - t)
        k1 = f(t, y)
        k2 = f(t + h, y + h * k1)
        error = (0.5 * h * (k2 - k1)).abs().max().item()
        if error <= TOLERANCE:
            y, t = y + 0.5 * h * (k1 + k2), t + h
            h = h * 2.0 if error < TOLERANCE / 5 else h
        else:
            h = h * 0.5
            if h < SMALLEST_STEP:
                raise RuntimeError(f"solver: step size fell below {SMALLEST_STEP} h at t = {t:.3f} h")
    return y


def ward_sheet(rows, seed=12):
    g = torch.Generator().manual_seed(seed)
    sheet = []
    for _ in range(rows):
        dose = [5.0, 10.0, 20.0][int(torch.randint(0, 3, (), generator=g))]
        hours = 0.5 + 5.5 * torch.rand((), generator=g).item()
        ka, ke, vol = 1.6, 0.25, 10.0
        curve = dose * ka / (vol * (ka - ke)) * (torch.exp(torch.tensor(-ke * hours)) - torch.exp(torch.tensor(-ka * hours)))
        sheet.append((dose, hours, curve.item() * (1 + 0.05 * torch.randn((), generator=g).item())))
    dose, hours, level = sheet[68]
    sheet[68] = (dose * 1e6, hours, level)  # entered on the night shift
    return sheet


def main():
    torch.manual_seed(12)
    model = Kinetics()
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    sheet = ward_sheet(120)
    for step in range(30):
        patients = sheet[4 * step: 4 * step + 4]
        loss = 0.0
        for dose, hours, level in patients:
            start = torch.stack([torch.tensor(dose), torch.tensor(0.0)])
            predicted = integrate(model, start, hours)[1]
            loss = loss + (torch.log1p(predicted.clamp(min=0)) - torch.log1p(torch.tensor(level))) ** 2
        opt.zero_grad()
        (loss / len(patients)).backward()
        opt.step()
        print(f"step {step + 1:2d} squared error {loss.item() / len(patients):.6f}")
    print("sum of squares of the weights:", sum(p.pow(2).sum().item() for p in model.parameters()))


main()
