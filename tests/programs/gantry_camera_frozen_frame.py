"""Tilt of the container spreader from the gantry camera: 6-D rotations, geodesic loss and a smoothness term.

Pairs of neighbouring frames go through the net together; the smoothness term asks that the angle between the
two predictions be as small as the angle of the (noisy) encoder between them.
"""
import torch
from torch import nn


def six_to_matrix(v):
    a, b = v[..., :3], v[..., 3:]
    x = a / a.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    b = b - (x * b).sum(-1, keepdim=True) * x
    y = b / b.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)


def euler(yaw, pitch):
    cy, sy, cp, sp = yaw.cos(), yaw.sin(), pitch.cos(), pitch.sin()
    o = torch.zeros_like(yaw)
    l = torch.ones_like(yaw)
    rz = torch.stack([cy, -sy, o, sy, cy, o, o, o, l], -1).view(-1, 3, 3)
    ry = torch.stack([cp, o, sp, o, l, o, -sp, o, cp], -1).view(-1, 3, 3)
    return rz @ ry


def geodesic(r1, r2):
    trace = (r1 * r2).sum((-1, -2))
    cosine = ((trace - 1) / 2).clamp(-1.0, 1.0)   # rounding can push it beyond 1
    return torch.acos(cosine)


class SpreaderNet(nn.Module):
    def __init__(self, pixels=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.six = nn.Linear(64, 6)
        with torch.no_grad():
            self.six.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1.0, 0]))

    def forward(self, img):
        return six_to_matrix(self.six(self.trunk(img)))


class Crane:
    """Plays the recording: 20 frames of two views per step."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.optics = torch.randn(9, 48, generator=self.g)

    def render(self, rot):
        clean = rot.reshape(-1, 9) @ self.optics
        return clean + 0.05 * torch.randn(clean.shape, generator=self.g)

    def window(self, step):
        yaw = 0.6 * torch.randn(20, generator=self.g)
        pitch = 0.4 * torch.randn(20, generator=self.g)
        r0 = euler(yaw, pitch)
        r1 = euler(yaw + 0.1, pitch - 0.05)
        i0, i1 = self.render(r0), self.render(r1)
        if step == 22:
            # encoder restart: the grabber repeated its last picture for half a second
            i1[8:] = i0[8:]
        return i0, i1, r0, r1


def fit(steps=45):
    torch.manual_seed(8)
    crane, net = Crane(8), SpreaderNet()
    opt = torch.optim.RMSprop(net.parameters(), lr=4e-4, momentum=0.5)
    for step in range(steps):
        i0, i1, r0, r1 = crane.window(step)
        both = net(torch.cat([i0, i1]))
        p0, p1 = both.chunk(2)
        absolute = (both - torch.cat([r0, r1])).pow(2).sum((-1, -2)).mean()
        swing = geodesic(p0, p1)
        smooth = (swing - 0.11).clamp_min(-0.11).pow(2).mean()
        loss = absolute + 0.3 * smooth
        opt.zero_grad()
        loss.backward()
        gn = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        print("%d\tloss %.6f\tswing %.5f\tgrad %.4f" % (step, loss.item(), swing.mean().item(), gn.item()))
    print("done, checksum %.6f" % sum(p.sum().item() for p in net.parameters()))


if __name__ == "__main__":
    fit()
