"""Deep-closest-point style registration of laser scans of steeples: soft matches, then a rigid motion by SVD."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

POINTS = 32


def random_rotation(g, limit=0.6):
    axis = torch.randn(3, generator=g)
    axis = axis / axis.norm()
    angle = (torch.rand(1, generator=g) * 2 - 1) * limit
    k = torch.zeros(3, 3)
    k[0, 1], k[0, 2], k[1, 2] = -axis[2], axis[1], -axis[0]
    k = k - k.t()
    return torch.eye(3) + torch.sin(angle) * k + (1 - torch.cos(angle)) * (k @ k)


class Scans(Dataset):
    """Spires (cones), towers (boxes) and, from the newer survey, the lightning rods on top of them."""

    def __init__(self, n, seed=7):
        self.items = []
        g = torch.Generator().manual_seed(seed)
        for i in range(n):
            h = torch.rand(POINTS, generator=g)
            phi = torch.rand(POINTS, generator=g) * 6.2832
            if i % 89 == 88:
                cloud = torch.stack([torch.zeros_like(h), torch.zeros_like(h), 3 * h], 1)       # rod
            elif i % 2:
                r = 1 - h
                cloud = torch.stack([r * torch.cos(phi), 0.7 * r * torch.sin(phi), 2 * h], 1)  # spire
            else:
                cloud = torch.stack([torch.rand(POINTS, generator=g), 1.5 * torch.rand(POINTS, generator=g), 2 * h], 1)
            rot = random_rotation(g)
            shift = 0.3 * torch.randn(3, generator=g)
            order = torch.randperm(POINTS, generator=g)
            self.items.append((cloud, (cloud @ rot.t() + shift)[order], rot, shift))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class PointFeatures(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, dim))
        self.mix = nn.Linear(2 * dim, dim)

    def forward(self, p):
        q = p - p.mean(1, keepdim=True)
        x = torch.cat([q, q.pow(2).sum(-1, keepdim=True)], -1)
        f = self.local(x)
        glob = f.max(1, keepdim=True).values.expand_as(f)
        return self.mix(torch.cat([f, glob], -1))


class SvdHead(nn.Module):
    def forward(self, src, matched):
        sc = src - src.mean(1, keepdim=True)
        mc = matched - matched.mean(1, keepdim=True)
        h = sc.transpose(1, 2) @ mc
        u, s, vt = torch.linalg.svd(h)
        v = vt.transpose(1, 2)
        sign = torch.det((v @ u.transpose(1, 2)).detach()).sign()
        flip = torch.ones(len(src), 3)
        flip[:, 2] = sign
        rot = v @ torch.diag_embed(flip) @ u.transpose(1, 2)
        shift = matched.mean(1) - (rot @ src.mean(1).unsqueeze(-1)).squeeze(-1)
        return rot, shift


class Registration(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = PointFeatures()
        self.head = SvdHead()
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, src, dst):
        score = self.features(src) @ self.features(dst).transpose(1, 2) * self.temperature
        matched = score.softmax(-1) @ dst
        return self.head(src, matched)


def registration_loss(rot, shift, true_rot, true_shift):
    eye = torch.eye(3)
    return ((rot.transpose(1, 2) @ true_rot - eye) ** 2).sum((1, 2)).mean() + ((shift - true_shift) ** 2).sum(1).mean()


def main():
    torch.manual_seed(21)
    loader = DataLoader(Scans(40 * 8), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(70))
    net = Registration()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    for step, (src, dst, rot, shift) in enumerate(loader, 1):
        pr, ps = net(src, dst)
        loss = registration_loss(pr, ps, rot, shift)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print("step %d loss %.5f" % (step, loss.item()), flush=True)
    print("%.5f" % sum(p.abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
