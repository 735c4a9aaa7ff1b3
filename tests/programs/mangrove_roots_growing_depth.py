import torch
from torch import nn
from torch.nn import functional as F


class StdConv(nn.Module):
    """3x3 convolution with weight standardization (per output channel)."""

    def __init__(self, c_in, c_out, zero=False):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(c_out, c_in, 3, 3))
        self.gain = nn.Parameter(torch.full((c_out, 1, 1, 1), 0.25))
        if not zero:
            nn.init.kaiming_normal_(self.kernel)

    def forward(self, x):
        mu = self.kernel.mean(dim=(1, 2, 3), keepdim=True)
        centred = self.kernel - mu
        spread = torch.sqrt((centred ** 2).mean(dim=(1, 2, 3), keepdim=True))
        return F.conv2d(x, self.gain * centred / (spread + 1e-5), padding=1)


class Residual(nn.Module):
    def __init__(self, width, fresh=False):
        super().__init__()
        self.norm = nn.GroupNorm(2, width)
        self.conv = StdConv(width, width, zero=fresh)

    def forward(self, x):
        return x + self.conv(F.gelu(self.norm(x)))


class RootNet(nn.Module):
    def __init__(self, width=8, classes=3):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(width)])
        self.head = nn.Linear(width, classes)

    def grow(self, width=8):
        # a new block starts as the identity, so that the function does not change
        self.blocks.append(Residual(width, fresh=True))
        return list(self.blocks[-1].parameters())

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.amax(dim=(2, 3)))


def root_images(n, gen):
    """stilt roots are arcs, pencil roots are upright, knee roots are bent"""
    kind = torch.randint(0, 3, (n,), generator=gen)
    img = 0.3 * torch.randn(n, 1, 16, 16, generator=gen)
    for i, k in enumerate(kind.tolist()):
        c = int(torch.randint(3, 12, (1,), generator=gen))
        for r in range(16):
            if k == 0:
                col = c + (r - 8) ** 2 // 16 - 2
            elif k == 1:
                col = c
            else:
                col = c + abs(r - 8) // 2 - 2
            img[i, 0, r, min(max(col, 0), 15)] += 2.0
    return img, kind


def fit(steps=34, grow_at=(13, 25)):
    torch.manual_seed(77)
    gen = torch.Generator().manual_seed(78)
    net = RootNet()
    sgd = torch.optim.SGD(net.parameters(), lr=0.008, momentum=0.9, nesterov=True)
    for step in range(1, steps + 1):
        if step in grow_at:
            sgd.add_param_group({"params": net.grow()})
            print("depth is now", len(net.blocks))
        x, y = root_images(24, gen)
        loss = F.cross_entropy(net(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        print("step %d loss %.4f" % (step, loss.item()))
    print("weights, summed squares: %.4f" % sum(p.detach().pow(2).sum().item() for p in net.parameters()))


fit()
