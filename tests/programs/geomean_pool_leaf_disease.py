import torch
import torch.nn as nn

torch.manual_seed(11)


class GeometricMean(torch.autograd.Function):
    """Geometric mean over the last axis with its closed-form derivative."""

    @staticmethod
    def forward(ctx, x):
        n = x.shape[-1]
        y = x.pow(1.0 / n).prod(-1, keepdim=True)
        ctx.save_for_backward(x, y)
        ctx.n = n
        return y.squeeze(-1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        share = y / (ctx.n * x)
        return grad.unsqueeze(-1) * share


class GeoPool(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        b, c, h, w = x.shape
        k = self.k
        t = x.view(b, c, h // k, k, w // k, k).permute(0, 1, 2, 4, 3, 5)
        return GeometricMean.apply(t.reshape(b, c, h // k, w // k, k * k))


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.pool = GeoPool(2)

    def forward(self, x):
        return self.pool(self.conv(x).abs())


class LeafNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(Stage(3, 12), Stage(12, 24))
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def random_erasing(x, size):
    x = x.clone()
    for img in x:
        top = int(torch.randint(0, 24 - size + 1, (1,)))
        left = int(torch.randint(0, 24 - size + 1, (1,)))
        img[:, top:top + size, left:left + size] = 0
    return x


labels = torch.randint(0, 4, (96,))
tint = torch.tensor([[.2, .6, .2], [.5, .5, .1], [.4, .3, .2], [.3, .7, .5]])
images = tint[labels][:, :, None, None] + 0.1 * torch.randn(96, 3, 24, 24)

net = LeafNet()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
# the patch grows with the epoch, as in the curriculum of the paper
for epoch, patch in enumerate([0, 2, 3, 10]):
    order = torch.randperm(96)
    for i in range(0, 96, 16):
        pick = order[i:i + 16]
        x = images[pick]
        if patch:
            x = random_erasing(x, patch)
        loss = nn.functional.cross_entropy(net(x), labels[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"epoch {epoch} batch {i // 16} loss {loss.item():.4f}")
print(sum(p.detach().square().sum().item() for p in net.parameters()))
