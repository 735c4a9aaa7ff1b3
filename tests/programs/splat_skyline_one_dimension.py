"""Fit the brightness profile of a harbour skyline with Gaussian splats on a line.

Splats are composited front to back. Slots that are not in use sit at infinite depth.
"""
import math
import torch

torch.manual_seed(11)
PIXELS = 160
SLOTS = 24
ROUNDS = 36
grid = torch.linspace(0.0, 1.0, PIXELS)


def skyline():
    img = 0.15 + 0.05 * torch.sin(grid * 9)
    for left, right, value in [(.08, .17, .7), (.22, .3, .45), (.36, .41, .95), (.5, .66, .6), (.72, .75, .85), (.83, .95, .4)]:
        img = torch.where((grid > left) & (grid < right), torch.full_like(img, value), img)
    return img


class Splats:
    names = ("centre", "log_width", "opacity", "shade")

    def __init__(self, count):
        self.p = {
            "centre": torch.rand(count),
            "log_width": torch.full((count,), math.log(0.05)),
            "opacity": torch.full((count,), -0.5),
            "shade": torch.rand(count),
        }
        self.depth = torch.rand(count)
        self.wrap()

    def wrap(self):
        self.p = {k: torch.nn.Parameter(v.detach().clone()) for k, v in self.p.items()}

    def padded_depth(self):
        full = torch.full((SLOTS,), float("inf"))
        full[: len(self.depth)] = self.depth
        return full

    def render(self):
        order = self.padded_depth().argsort(stable=True)
        order = order[: len(self.depth)]
        c, w = self.p["centre"][order, None], self.p["log_width"][order, None].exp()
        shape = torch.exp(-0.5 * ((grid - c) / w) ** 2)
        alpha = 0.98 * torch.sigmoid(self.p["opacity"][order, None]) * shape
        through = torch.cumprod(1 - alpha, 0)
        before = torch.cat([torch.ones(1, PIXELS), through[:-1]])
        return (before * alpha * self.p["shade"][order, None]).sum(0)


def make_optimizer(s):
    rates = {"centre": 4e-3, "log_width": 3e-2, "opacity": 0.15, "shade": 3e-2}
    return torch.optim.Adam([{"params": [s.p[k]], "lr": rates[k], "name": k} for k in s.names])


def rebuild(s, opt, keep, clone):
    """Keep some splats, copy others, and carry Adam's moments over to the new tensors."""
    old = {g["name"]: opt.state[g["params"][0]] for g in opt.param_groups}
    rows = torch.cat([keep, clone])
    s.p = {k: v.detach()[rows] for k, v in s.p.items()}
    s.p["centre"][len(keep):] += 0.01
    s.depth = torch.cat([s.depth[keep], s.depth[clone] + 1e-3])
    s.wrap()
    fresh = make_optimizer(s)
    for k in s.names:
        second = old[k]["exp_avg_sq"][rows].clone()
        first = old[k]["exp_avg"][rows].clone()
        first[len(keep):] = 0
        fresh.state[s.p[k]] = {"step": old[k]["step"].clone(), "exp_avg": first, "exp_avg_sq": second}
    return fresh


target = skyline()
splats = Splats(9)
opt = make_optimizer(splats)
for r in range(1, ROUNDS + 1):
    loss = (splats.render() - target).abs().mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    pull = splats.p["centre"].grad.abs()
    opt.step()
    if r in (8, 16, 28):
        keep = (splats.p["opacity"].detach() > -1.4).nonzero()[:, 0]
        wanted = pull.argsort(descending=True)[: min(5, SLOTS - len(keep))]
        opt = rebuild(splats, opt, keep, wanted)
    if r == 20:
        with torch.no_grad():
            splats.p["opacity"].fill_(-1.5)
        opt.state[splats.p["opacity"]] = {}
    deepest = splats.padded_depth().max().item()
    print(f"round {r:2d} splats {len(splats.depth):2d} l1 {loss.item():.5f} back plane {deepest:.2f}")
print("sum of squares of the splats:", round(sum(v.detach().square().sum().item() for v in splats.p.values()), 5))
