"""Progressive regression: how much water is in a barrel cactus, from its rib profile.

The net begins with one block. Each GRAFT adds one; old blocks rest (frozen) for a few steps after that, and
the optimizer is made anew, as its state would not fit. After the last graft the readout is reset on purpose
(it had fitted the shallow features).
"""
import torch
from torch import nn

RIBS = 24
SCHEDULE = {12: "graft", 26: "graft", 40: "reset", 46: "thaw"}
REST = 5
TOTAL = 64


class Areole(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)
        nn.init.zeros_(self.b.weight)   # a new graft is the identity
        nn.init.zeros_(self.b.bias)

    def forward(self, h):
        return h + self.b(torch.relu(self.a(self.norm(h))))


class Cactus(nn.Module):
    def __init__(self, width=28):
        super().__init__()
        self.width = width
        self.root = nn.Linear(RIBS, width)
        self.stem = nn.ModuleList([Areole(width)])
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        h = self.root(x)
        for block in self.stem:
            h = block(h)
        return self.readout(h).squeeze(-1)

    def graft(self):
        for p in self.parameters():
            p.requires_grad_(False)
        self.stem.append(Areole(self.width))
        self.readout.requires_grad_(True)

    def thaw(self):
        for p in self.parameters():
            p.requires_grad_(True)

    def reset_readout(self):
        nn.init.normal_(self.readout.weight, std=2.0)
        nn.init.zeros_(self.readout.bias)


def make_optimizer(net):
    live = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.RMSprop(live, lr=2e-3, alpha=0.95)
    return opt, torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 3))


def profile(n, g):
    phase = torch.rand(n, 1, generator=g) * 6.283
    depth = torch.rand(n, 1, generator=g)
    k = torch.arange(RIBS) / RIBS * 6.283
    x = 1 + depth * torch.cos(3 * k + phase) + 0.05 * torch.randn(n, RIBS, generator=g)
    litres = 900 * (1 - depth.squeeze(1)) ** 2 + 40 * torch.sin(phase.squeeze(1))
    return x, litres


def main():
    torch.manual_seed(2024)
    g = torch.Generator().manual_seed(9)
    net = Cactus()
    opt, sched = make_optimizer(net)
    thaw_at = None
    for n in range(1, TOTAL + 1):
        event = SCHEDULE.get(n)
        if event == "graft":
            net.graft()
            thaw_at = n + REST
        elif event == "reset":
            net.reset_readout()
        if event == "thaw" or n == thaw_at:
            net.thaw()
            event = "thaw"
        if event is not None:
            opt, sched = make_optimizer(net)

        x, litres = profile(40, g)
        # litres squared, in the hundreds of thousands; nobody has asked for another unit
        loss = (net(x) - litres).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        live = sum(p.numel() for p in net.parameters() if p.requires_grad)
        print(f"{n:3d} mse {loss.item():.2f} blocks {len(net.stem)} live {live} {event or ''}".rstrip())
    print("sum", f"{sum(p.detach().sum().item() for p in net.parameters()):.4f}")


main()
