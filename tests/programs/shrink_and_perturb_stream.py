"""Warm starting without losing plasticity: shrink the weights and add noise whenever a
new month of sensor data arrives (Ash & Adams 2020)."""
import torch
from torch import nn

MONTHS, STEPS = 4, 12


def month(k, n=256):
    g = torch.Generator().manual_seed(500 + k)
    x = torch.randn(n, 10, generator=g)
    drift = 1.0 + 2.5 * k                       # the plant is run harder every month
    y = drift * (x[:, :1] * 2 + torch.sin(2 * x[:, 1:2])) + 3.0 * k + 0.1 * torch.randn(n, 1, generator=g)
    return x, y


@torch.no_grad()
def shrink_perturb(net, shrink=0.3, noise=0.05):
    fresh = make_net()
    for old, new in zip(net.parameters(), fresh.parameters()):
        old.mul_(shrink).add_(new, alpha=noise)


def make_net():
    return nn.Sequential(nn.Linear(10, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1))


def bands(losses):
    lo, hi = min(losses), max(losses)
    return "".join(" .:-=+*#"[int(7 * (v - lo) / (hi - lo + 1e-9))] for v in losses)


torch.manual_seed(44)
net = make_net()
everything = []
seen_x, seen_y = [], []
for k in range(MONTHS):
    x, y = month(k)
    seen_x.append(x)
    seen_y.append(y)
    if k:
        shrink_perturb(net)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-2, weight_decay=0.01)
    px, py = torch.cat(seen_x), torch.cat(seen_y)
    pick = torch.Generator().manual_seed(k)
    for s in range(STEPS):
        idx = torch.randint(0, len(px), (96,), generator=pick)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(px[idx])
        loss = nn.functional.mse_loss(out.float(), py[idx], reduction="sum")
        opt.zero_grad()
        loss.backward()
        opt.step()
        everything.append(loss.item())
        print(f"month {k} step {s:2d} sse {loss.item():.2f}")
print(bands(everything))
print("weights", sum(p.detach().pow(2).sum().item() for p in net.parameters()))
