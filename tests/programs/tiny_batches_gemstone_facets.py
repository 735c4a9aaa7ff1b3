"""Gemstone cut classifier; the microscope delivers trays of very different sizes.

BatchNorm cannot work on a tray of one stone, so such trays wait. An EMA copy is evaluated.
"""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

CUTS = ("brilliant", "step", "rose", "cabochon")


def conv_bn(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class FacetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_bn(1, 8, 2)
        self.stage1 = conv_bn(8, 16, 2)
        self.stage2 = conv_bn(16, 24, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.neck = nn.Sequential(nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, len(CUTS))

    def forward(self, x):
        x = self.stage2(self.stage1(self.stem(x)))
        return self.head(self.neck(self.pool(x).flatten(1)))


def trays(n, seed):
    g = torch.Generator().manual_seed(seed)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij"))
    radius, angle = grid.norm(dim=0), torch.atan2(grid[1], grid[0])
    pattern = torch.stack(
        [torch.cos(8 * angle), torch.sign(torch.sin(9 * grid[0])), torch.cos(3 * angle) * radius, 1 - radius]
    )
    for _ in range(n):
        size = int(torch.randint(1, 5, (1,), generator=g))
        y = torch.randint(0, 4, (size,), generator=g)
        yield pattern[y].unsqueeze(1) + 0.5 * torch.randn(size, 1, 24, 24, generator=g), y


@torch.no_grad()
def update_ema(ema, model, decay=0.9):
    for a, b in zip(ema.state_dict().values(), model.state_dict().values(), strict=False):
        if a.is_floating_point():
            a.lerp_(b, 1 - decay)
        else:
            a.copy_(b)


@torch.no_grad()
def per_class_accuracy(model, x, y):
    model.eval()
    hit = (model(x).argmax(1) == y).float()
    seen = F.one_hot(y, len(CUTS)).float()
    return (hit @ seen) / seen.sum(0)  # 0/0 where the tray has none of that cut


def main():
    torch.manual_seed(55)
    net = FacetNet()
    ema = copy.deepcopy(net)
    for p in ema.parameters():
        p.requires_grad_(False)
    for p in net.stem.parameters():  # the stem comes from the lens calibration
        p.requires_grad_(False)
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9, nesterov=True)
    done = waiting = 0
    for x, y in trays(64, seed=56):
        if len(y) < 2:
            waiting += 1
            print(f"tray of one stone, waits ({waiting})", flush=True)
            continue
        net.train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(x)
        loss = F.cross_entropy(logits.float(), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        update_ema(ema, net)
        done += 1
        scores = " ".join(f"{a:.2f}" for a in per_class_accuracy(ema, x, y).tolist())
        print(f"step {done} n {len(y)} loss {loss.item():.5f} per cut [{scores}]", flush=True)
    print(f"weights {sum(p.abs().sum() for p in net.parameters()).item():.3f}")


if __name__ == "__main__":
    main()
