"""Rotation-equivariant network (vector neurons) that sorts scanned seashells into three families."""
import torch
import torch.nn as nn

N_POINTS = 24


def shell(family, g, n):
    turn = torch.linspace(0, 9, n) + 0.1 * torch.randn(n, generator=g)
    grow = [0.05, 0.15, 0.30][family]
    r = torch.exp(grow * (turn - 9))
    pts = torch.stack([r * turn.cos(), r * turn.sin(), [1.5, 0.7, 0.2][family] * r], 1)
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=g))
    return (pts + 0.02 * torch.randn(n, 3, generator=g)) @ q


class Scans(torch.utils.data.Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(size):
            family = i % 3
            seen = 19 if i == 148 else N_POINTS      # a shard: fewer points than the scanner asks for
            cloud = torch.zeros(N_POINTS, 3)
            pts = shell(family, g, seen)
            cloud[:seen] = pts - pts.mean(0)
            self.items.append((cloud, seen, family))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class VNLinear(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(b, a) / a ** 0.5)

    def forward(self, v):                       # batch, points, channels, xyz
        return torch.einsum("oc,bncx->bnox", self.mix, v)


class VNReLU(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.direction = VNLinear(c, c)

    def forward(self, v):
        k = self.direction(v)
        k = k / k.pow(2).sum(-1, keepdim=True).sqrt()
        along = (v * k).sum(-1, keepdim=True)
        return v - along.clamp(max=0) * k


class ShellNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.lift = VNLinear(1, width)
        self.gate = VNReLU(width)
        self.mix = VNLinear(width, width)
        self.out = nn.Linear(width * width, 3)

    def forward(self, cloud, seen):
        keep = (torch.arange(N_POINTS)[None] < seen[:, None]).float()
        h = self.mix(self.gate(self.lift(cloud[:, :, None])))
        h = h * keep[:, :, None, None]
        gram = torch.einsum("bncx,bndx->bcd", h, h) / seen[:, None, None]
        return self.out(gram.flatten(1))


def fit(net, loader, epochs=1):
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    step = 0
    for _ in range(epochs):
        for cloud, seen, family in loader:
            loss = nn.functional.cross_entropy(net(cloud, seen), family)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            print(f"[{step:03d}] ce={loss:.5f}")


if __name__ == "__main__":
    torch.manual_seed(12)
    net = ShellNet()
    fit(net, torch.utils.data.DataLoader(Scans(256, 3), batch_size=8))
    print("weights squared:", torch.cat([p.detach().flatten() for p in net.parameters()]).square().sum().item())
