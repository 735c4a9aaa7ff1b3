"""Where to close the gripper: a fully convolutional scorer over a depth picture.

The camera leaves holes and half of the cells cannot be reached by the arm.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE = 12
g = torch.Generator().manual_seed(2024)


def scene(n):
    yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    cy, cx = torch.randint(2, SIDE - 2, (2, n, 1, 1), generator=g)
    block = ((yy - cy).abs() <= 1) & ((xx - cx).abs() <= 1)
    depth = 0.8 - 0.1 * block.float() + 0.01 * torch.randn(n, SIDE, SIDE, generator=g)
    depth[torch.rand(depth.shape, generator=g) < 0.06] = float("nan")
    reach = torch.rand(n, SIDE, SIDE, generator=g) < 0.5
    best = (cy * SIDE + cx).view(n)
    reach.view(n, -1).scatter_(1, best[:, None], True)
    folded = torch.rand(n, generator=g) < 0.2            # the arm is folded away: nothing can be reached
    reach[folded] = False
    return depth, reach, best


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(2, 12, 3, padding=1)
        self.more = nn.Conv2d(12, 12, 3, padding=1)
        self.score = nn.Conv2d(12, 1, 1)

    def forward(self, depth, reach):
        hole = depth.isnan()
        filled = torch.where(hole, torch.nanmedian(depth), depth)
        x = torch.stack([(filled - 0.8) * 10, hole.float()], 1)
        score = self.score(F.gelu(self.more(F.gelu(self.features(x)))))
        return score.flatten(1).masked_fill(~reach.flatten(1), -torch.inf)


def surprise(score, best):
    """cross entropy over the reachable cells; scenes in which nothing is reachable do not count"""
    some = score.isfinite().any(1)
    if not some.any():
        return None
    safe = torch.where(some[:, None], score, 0.0)
    each = F.cross_entropy(safe, best, reduction="none")
    return torch.where(some, each, 0.0).sum() / some.sum()


def learn(rounds=30):
    torch.manual_seed(6)
    net = Scorer()
    opt = torch.optim.RAdam(net.parameters(), lr=8e-2)
    nearest = torch.full((), torch.inf)                  # best mean distance so far
    taken = 0
    for r in range(1, rounds + 1):
        depth, reach, best = scene(10)
        if r in (9, 21):
            reach[:] = False                             # maintenance: the arm stays folded all day
        score = net(depth, reach)
        loss = surprise(score, best)
        if loss is None:
            print(f"round {r:2d}: nothing in reach, highest score {score.max().item()}")
            continue
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        taken += 1
        with torch.no_grad():
            pick = score.argmax(1)
            off = torch.hypot((pick // SIDE - best // SIDE).float(), (pick % SIDE - best % SIDE).float())
            off = off.masked_fill(~reach.flatten(1).any(1), float("nan")).nanmean()
            nearest = torch.minimum(nearest, off)
        print(f"round {r:2d}: surprise {loss.item():.4f}, {off.item():.2f} cells off, closest so far {nearest.item():.2f}")
    print("updates:", taken)
    print("sum of absolute weights:", sum(p.abs().sum() for p in net.parameters()).item())


learn()
