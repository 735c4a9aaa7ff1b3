"""Forward-Forward (Hinton 2022): every layer has its own goal and its own optimizer."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES, PIXELS = 5, 49


def digits(n, seed):
    g = torch.Generator().manual_seed(seed)
    shapes = (torch.rand(CLASSES, PIXELS, generator=torch.Generator().manual_seed(99)) > 0.6).float()
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = (shapes[y] + 0.35 * torch.randn(n, PIXELS, generator=g)).clamp(0, 1.5)
    return x, y


def with_label(x, y):
    return torch.cat([4 * F.one_hot(y, CLASSES).float(), x - 0.4], dim=1)


class FFLayer(nn.Linear):
    def __init__(self, n_in, n_out, threshold=0.5, lr=0.02):
        super().__init__(n_in, n_out)
        self.threshold = threshold
        self.opt = torch.optim.Adam(self.parameters(), lr=lr)

    def forward(self, x):
        unit = x / (x.norm(dim=1, keepdim=True) + 1e-4)
        return torch.relu(super().forward(unit))

    def learn(self, pos, neg):
        g_pos = self.forward(pos).pow(2).mean(1)
        g_neg = self.forward(neg).pow(2).mean(1)
        loss = F.softplus(torch.cat([self.threshold - g_pos, g_neg - self.threshold])).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        with torch.no_grad():
            return self.forward(pos), self.forward(neg), loss.item()


class FFNet(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(FFLayer(a, b) for a, b in zip(sizes, sizes[1:]))

    @torch.no_grad()
    def predict(self, x):
        score = []
        for c in range(CLASSES):
            h = with_label(x, torch.full((len(x),), c))
            good = 0
            for layer in self.layers:
                h = layer(h)
                good = good + h.pow(2).mean(1)
            score.append(good)
        return torch.stack(score, 1).argmax(1)


def main():
    torch.manual_seed(33)
    x, y = digits(640, seed=1)
    net = FFNet([CLASSES + PIXELS, 60, 60, 40])
    gen = torch.Generator().manual_seed(4)
    for it in range(40):
        rows = torch.randint(0, len(x), (128,), generator=gen)
        wrong = (y[rows] + torch.randint(1, CLASSES, (128,), generator=gen)) % CLASSES
        pos, neg = with_label(x[rows], y[rows]), with_label(x[rows], wrong)
        losses = []
        for layer in net.layers:
            pos, neg, loss = layer.learn(pos, neg)
            losses.append(f"{loss:.4f}")
        print(f"iter {it:2d} losses {' '.join(losses)}")
    tx, ty = digits(200, seed=2)
    print("accuracy", (net.predict(tx) == ty).float().mean().item())
    print(sum(p.detach().pow(2).sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
