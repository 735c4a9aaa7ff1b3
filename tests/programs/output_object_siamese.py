import torch
from torch import nn

torch.set_num_threads(1)


class Pair:
    """What the tower returns for one pair of images."""

    def __init__(self, left, right):
        self.left, self.right = left, right
        self.distance = (left - right).pow(2).sum(dim=1).sqrt()

    def contrastive(self, same, margin=1.0):
        pull = same * self.distance.pow(2)
        push = (1 - same) * torch.clamp(margin - self.distance, min=0.0).pow(2)
        return (pull + push).mean()


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 8 * 8, 16)

    def embed(self, img):
        return self.fc(torch.relu(self.conv(img)).flatten(1))

    def forward(self, a, b):
        return Pair(self.embed(a), self.embed(b))


def make_batches(n, size=6):
    g = torch.Generator().manual_seed(3)
    for i in range(n):
        a = torch.rand(size, 1, 8, 8, generator=g)
        b = torch.rand(size, 1, 8, 8, generator=g)
        same = torch.zeros(size)
        b[:2] = a[:2] + 0.05 * torch.randn(2, 1, 8, 8, generator=g)
        same[:2] = 1
        if i == 8:
            b[4] = a[4]
        yield a, b, same


def main():
    torch.manual_seed(0)
    tower = Tower()
    opt = torch.optim.RMSprop(tower.parameters(), lr=1e-3)
    for n, (a, b, same) in enumerate(make_batches(14), 1):
        opt.zero_grad()
        loss = tower(a, b).contrastive(same)
        loss.backward()
        opt.step()
        print("batch", n, "loss", loss.item())
    print("sum of weights", sum(p.double().sum().item() for p in tower.parameters()))


main()
