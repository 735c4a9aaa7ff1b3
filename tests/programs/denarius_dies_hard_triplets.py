# Which coins of the hoard were struck from the same die? Batch-hard triplets over photographs of reverses.
import torch
from torch import nn

INF = float("inf")
torch.manual_seed(12)
N_DIES, SIDE = 24, 14
dies = torch.nn.functional.interpolate(torch.rand(N_DIES, 1, 5, 5), size=SIDE, mode="bicubic", align_corners=False)[:, 0]


def photograph(die, wear, gen):
    """A struck coin: relief, worn down, lit from somewhere, with a bit of grain."""
    relief = dies[die] * (1 - wear * torch.rand(1, generator=gen))
    light = 0.8 + 0.4 * torch.rand(1, generator=gen)
    return light * relief + wear * 0.3 * torch.randn(SIDE, SIDE, generator=gen)


def tray(gen, step):
    wear = 0.05 if step < 18 else 0.35                  # the well preserved ones come first
    picked = torch.randperm(N_DIES, generator=gen)[:6]
    label = picked.repeat_interleave(3)
    coins = torch.stack([photograph(d, wear, gen) for d in label.tolist()])
    if step % 7 == 3:
        coins[1] = coins[0]                              # the museum owns two prints of this negative
    if step in (10, 23):
        label = label[:1].expand(18)                     # a tray of one die only
    return coins.flatten(1), label


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            z = self.body(x)
        return z.float()


def batch_hard(z, label, margin):
    d = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    same = label[:, None] == label[None, :]
    myself = torch.eye(len(z), dtype=torch.bool)
    far = d.masked_fill(~same | myself, -INF).amax(1)
    near = d.masked_fill(same, INF).amin(1)
    hinge = torch.relu(margin + far - near)              # no stranger in the tray: near is inf, hinge 0
    return hinge.mean(), int((hinge > 0).sum()), near.min()


def main():
    net = Embedder()
    adamw = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=12)
    gen = torch.Generator().manual_seed(40)
    margin = 0.2
    for step in range(40):
        if step == 30:
            margin = 0.8
        coins, label = tray(gen, step)
        adamw.zero_grad()
        loss, active, nearest = batch_hard(net(coins), label, margin)
        scaler.scale(loss).backward()
        scaler.step(adamw)
        before = scaler.get_scale()
        scaler.update()
        note = "  scale halved" if scaler.get_scale() < before else ""
        print(f"tray {step:2d}  loss {loss.item():.5f}  active {active:2d}/18  nearest stranger {nearest.item():.3f}{note}")
    print("sum of squared weights", sum((w.detach() ** 2).sum() for w in net.parameters()).item())


main()
