# Tiny radiance field of a greenhouse. Densities are exp(raw), as in the trunc-exp of instant-ngp but without the
# truncation. Poses come from two rigs; one calibration file of rig B was written in millimetres.
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(360)
torch.set_num_threads(1)
N_RAYS, N_SAMPLES = 24, 16
NEAR, FAR = 0.5, 3.5


def encode(x, octaves=3):
    out = [x]
    for k in range(octaves):
        out += [torch.sin(2 ** k * x), torch.cos(2 ** k * x)]
    return torch.cat(out, -1)


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.l1 = nn.Linear(21, width)
        self.l2 = nn.Linear(width, width)
        self.sigma = nn.Linear(width, 1)
        self.rgb = nn.Linear(width, 3)

    def forward(self, pts):
        h = F.relu(self.l2(F.relu(self.l1(encode(pts)))))
        density = torch.exp(self.sigma(h).squeeze(-1) - 4.0)     # starts as thin air
        return density, torch.sigmoid(self.rgb(h))


def poses(views):
    """camera centres on a ring, looking inwards"""
    for v in range(views):
        a = 2 * math.pi * v / 11
        yield torch.tensor([2 * math.cos(a), 2 * math.sin(a), 0.3])


def rays(centre, g):
    jitter = 0.25 * torch.randn(N_RAYS, 3, generator=g)
    d = F.normalize(-F.normalize(centre, dim=0) + jitter, dim=-1)
    return centre.expand(N_RAYS, 3), d


def true_colour(o, d):
    # dark leaves in the middle, bright panes around them
    closest = (o + d * (-(o * d).sum(-1, keepdim=True))).norm(dim=-1, keepdim=True)
    return torch.sigmoid(4 * (closest - 0.4)) * torch.tensor([0.3, 0.9, 0.4])


def render(field, o, d, g):
    t = torch.linspace(NEAR, FAR, N_SAMPLES) + 0.02 * torch.rand(N_RAYS, N_SAMPLES, generator=g)
    t, _ = t.sort(-1)
    pts = o[:, None] + d[:, None] * t[..., None]
    density, colour = field(pts)
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full((N_RAYS, 1), 0.2)], -1)
    alpha = 1 - torch.exp(-density * delta)
    trans = torch.cumprod(1 - alpha + 1e-10, -1)
    trans = torch.cat([torch.ones(N_RAYS, 1), trans[:, :-1]], -1)
    return ((trans * alpha)[..., None] * colour).sum(1)


field = Field()
opt = torch.optim.Adam(field.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.98)
g = torch.Generator().manual_seed(21)

for view, centre in enumerate(poses(38), start=1):
    o, d = rays(centre, g)
    target = true_colour(o, d)
    if view == 24:
        o = o * 1000.0
    pred = render(field, o, d, g)
    loss = F.mse_loss(pred, target)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    schedule.step()
    print(f"view {view:02d} mse {loss.item():.7f}")

with torch.no_grad():
    print("parameters sum to", f"{torch.cat([p.flatten() for p in field.parameters()]).sum().item():.6f}")
