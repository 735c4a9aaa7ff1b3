import torch
from torch import nn


class PCEN(nn.Module):
    """Trainable per-channel energy normalization (Wang et al. 2017)."""

    def __init__(self, n_mels, eps=1e-6):
        super().__init__()
        self.alpha = nn.Parameter(torch.full((n_mels, 1), 0.98))
        self.delta = nn.Parameter(torch.full((n_mels, 1), 2.0))
        self.r = 0.5
        self.s = nn.Parameter(torch.full((n_mels, 1), 0.04))
        self.eps = eps

    def forward(self, energy):
        smooth, m = [], energy[..., :1]
        for frame in energy.split(1, dim=-1):
            m = (1 - self.s) * m + self.s * frame
            smooth.append(m)
        gain = (torch.cat(smooth, -1) + self.eps) ** self.alpha
        return (energy / gain + self.delta) ** self.r - self.delta ** self.r


class BirdNet(nn.Module):
    def __init__(self, n_mels=16, species=5):
        super().__init__()
        self.frontend = PCEN(n_mels)
        self.conv = nn.Sequential(nn.Conv1d(n_mels, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(),
                                  nn.Conv1d(24, 24, 5, padding=2), nn.ReLU())
        self.fc = nn.Linear(24, species)

    def forward(self, x):
        return self.fc(self.conv(self.frontend(x)).amax(-1))


def clips(n, gen, n_mels=16, frames=40, species=5):
    label = torch.randint(0, species, (n,), generator=gen)
    spec = 0.05 + 0.05 * torch.rand(n, n_mels, frames, generator=gen)
    for i, k in enumerate(label.tolist()):
        at = int(torch.randint(0, frames - 8, (1,), generator=gen))
        spec[i, 3 * k:3 * k + 3, at:at + 8] += 0.4 + 0.2 * torch.rand(1, generator=gen)
    return spec, label


torch.manual_seed(16)
gen = torch.Generator().manual_seed(4)
net = BirdNet()
opt = torch.optim.Adam([
    {"params": net.frontend.parameters(), "lr": 0.012},
    {"params": [*net.conv.parameters(), *net.fc.parameters()], "lr": 2e-3},
])
for step in range(1, 61):
    x, y = clips(32, gen)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step:02d}  xent {loss.item():.4f}")
print("sum w^2", sum(p.detach().pow(2).sum().item() for p in net.parameters()))
