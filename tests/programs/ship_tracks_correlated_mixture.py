# where will the vessel be in ten minutes?  mixture density network on AIS displacements
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

K = 3
STEPS = 40


def make_tracks(n, gen):
    """course over ground, speed, length of ship -> displacement (east, north) in nautical miles"""
    speed = 0.4 + 1.2 * torch.rand(n, generator=gen)
    inbound = torch.rand(n, generator=gen) < 0.5
    # the fairway runs north-east, ships keep to it apart from leeway
    along = torch.where(inbound, speed, -speed)
    leeway = torch.randn(n, 2, generator=gen) * 0.10
    shift = torch.stack([along, along], 1) * 0.7 + leeway
    turn = torch.randn(n, generator=gen) * 0.2
    obs = torch.stack([speed, torch.rand(n, generator=gen), turn], 1)
    return obs, shift


class TrackMixture(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.Tanh())
        self.weights = nn.Linear(width, K)
        self.centres = nn.Linear(width, 2 * K)
        self.spreads = nn.Linear(width, 2 * K)
        self.slant = nn.Linear(width, K)

    def forward(self, obs):
        h = self.trunk(obs)
        mu = self.centres(h).view(-1, K, 2)
        sd = F.softplus(self.spreads(h)).view(-1, K, 2) + 0.02
        rho = F.hardtanh(self.slant(h))
        return F.log_softmax(self.weights(h), -1), mu, sd, rho


def neg_log_density(out, shift):
    logw, mu, sd, rho = out
    zx, zy = ((shift[:, None, :] - mu) / sd).unbind(-1)
    rest = 1 - rho.square()
    quad = (zx.square() - 2 * rho * zx * zy + zy.square()) / rest
    log_det = 2 * sd.log().sum(-1) + torch.log(rest)
    comp = logw - 0.5 * quad - 0.5 * log_det - math.log(2 * math.pi)
    return -torch.logsumexp(comp, -1).mean()


def fit():
    gen = torch.Generator().manual_seed(19)
    torch.manual_seed(19)
    net = TrackMixture()
    opt = torch.optim.Adam(net.parameters(), lr=0.004)
    obs, shift = make_tracks(200, gen)
    for step in range(1, STEPS + 1):
        nll = neg_log_density(net(obs), shift)
        opt.zero_grad(set_to_none=True)
        nll.backward()
        opt.step()
        print("step", step, "nll %.4f" % nll.item())
    return net


net = fit()
print("sum of absolute weights: %.4f" % sum(p.abs().sum().item() for p in net.parameters()))
