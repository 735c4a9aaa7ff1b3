"""An operator from shot gathers to wave speeds, trained through the leapfrog scheme of the 1-D wave equation."""
import torch
from torch import nn

STEPS, DT = 64, 0.02
STAGES = {1: 32, 19: 96}          # batch -> cells of the rod, coarse to fine
EARS = torch.tensor([5, 11, 17, 23, 29])


def shot_gathers(count, gen):
    """Traces of a pulse at five receivers, by ray theory, for random layered rods."""
    layers = 0.7 + 0.5 * torch.rand(count, 4, generator=gen)
    cells = layers.repeat_interleave(8, dim=1)
    arrival = torch.cumsum(1 / 32 / cells, dim=1)[:, EARS]
    clock = torch.arange(1, STEPS + 1) * DT
    traces = torch.exp(-((clock[None, None] - arrival[:, :, None]) / 0.08) ** 2) * 0.5
    return traces + 0.01 * torch.randn(traces.shape, generator=gen)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(5 * STEPS, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, traces, cells):
        knots = 0.6 + 0.7 * torch.sigmoid(self.net(traces))
        return nn.functional.interpolate(knots[:, None], size=cells, mode="linear", align_corners=True)[:, 0]


class Marcher(nn.Module):
    def forward(self, speed):
        n = speed.shape[1]
        courant = (speed * DT * n) ** 2
        x = torch.linspace(0, 1, n)
        before = torch.exp(-(x / 0.1) ** 2).expand(speed.shape[0], n)
        now = before
        heard = []
        for _ in range(STEPS):
            padded = torch.cat([now[:, :1], now, now[:, -1:]], dim=1)
            bend = padded[:, 2:] - 2 * now + padded[:, :-2]
            push = courant * bend
            before, now = now, 2 * now - before + push
            heard.append(now[:, EARS * n // 32])
        return torch.stack(heard, dim=2)


class SpeedOperator(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader = Reader()
        self.march = Marcher()

    def forward(self, traces, cells):
        return self.march(self.reader(traces, cells))


def main(batches=30, size=8):
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(5)
    model = SpeedOperator()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    cooling = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
    cells = None
    for number in range(1, batches + 1):
        cells = STAGES.get(number, cells)
        traces = shot_gathers(size, gen)
        misfit = (model(traces, cells) - traces).square().mean()
        opt.zero_grad()
        misfit.backward()
        opt.step()
        cooling.step()
        print(f"batch {number:02d} cells {cells} waveform misfit {misfit.item():.6f}")
    print("reader weights, absolute sum:", f"{sum(p.abs().sum().item() for p in model.parameters()):.4f}")


if __name__ == "__main__":
    main()
