import torch


class TrayLoss(torch.autograd.Function):
    """binary cross entropy on logits, both directions written out"""

    @staticmethod
    def forward(ctx, z, y):
        p = 1 / (1 + torch.exp(-z))
        ctx.save_for_backward(p, y)
        lo = 1e-7
        return -(y * torch.log(p.clamp(min=lo)) + (1 - y) * torch.log((1 - p).clamp(min=lo))).mean()

    @staticmethod
    def backward(ctx, grad):
        p, y = ctx.saved_tensors
        dp = (1 - y) / (1 - p) - y / p
        return grad * dp * p * (1 - p) / len(y), None


class Seedlings(torch.nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.a = torch.nn.Linear(n_in, 10)
        self.b = torch.nn.Linear(10, 1)

    def forward(self, x):
        return self.b(torch.nn.functional.softplus(self.a(x))).squeeze(1)


def make_trays(n=200):
    g = torch.Generator().manual_seed(31)
    warmth = 8 + 16 * torch.rand(n, generator=g)
    water = 20 + 60 * torch.rand(n, generator=g)
    depth = 0.5 + 3 * torch.rand(n, generator=g)
    score = (warmth - 15) / 3 + (water - 45) / 20 - (depth - 2)
    came_up = (score > 0).float()
    x = torch.stack([(warmth - 16) / 4, (water - 50) / 15, depth - 2], 1)
    return x, came_up


def fit(steps=34):
    torch.manual_seed(12)
    x, y = make_trays()
    net = Seedlings(3)
    opt = torch.optim.SGD(net.parameters(), lr=0.8, momentum=0.9)
    for s in range(steps):
        z = net(x)
        loss = TrayLoss.apply(z, y)
        for p in net.parameters():
            p.grad = None
        loss.backward()
        opt.step()
        right = ((z > 0) == (y > 0.5)).float().mean()
        print(f"step {s + 1} loss {loss.item():.6f} right {right.item():.3f}")
    return net


if __name__ == "__main__":
    net = fit()
    print("weights: sum of squares =", sum((p ** 2).sum().item() for p in net.parameters()))
