"""DGCNN for plant organ classification from laser scans: dynamic k-nearest-neighbour graphs with edge convolutions."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Args:
    k = 12
    voxel = 0.12
    scans = 90
    lr = 2e-3
    epochs = 2
    clouds_per_step = 3


def voxel_downsample(points, size):
    cells = torch.floor(points / size).long()
    _, inverse = torch.unique(cells, dim=0, return_inverse=True)
    total = torch.zeros(int(inverse.max()) + 1, 3).index_add_(0, inverse, points)
    return total / inverse.bincount()[:, None]


class PlantScans(Dataset):
    """0: leaf (flat), 1: stem (line), 2: fruit (ball). The density depends on the distance of the scanner."""

    def __init__(self, args, seed=16):
        g = torch.Generator().manual_seed(seed)
        self.scans = []
        for i in range(args.scans):
            organ = i % 3
            n = int(torch.randint(80, 200, (1,), generator=g))
            p = torch.randn(n, 3, generator=g)
            if organ == 0:
                p = p * torch.tensor([0.4, 0.3, 0.02])
            elif organ == 1:
                p = p * torch.tensor([0.03, 0.03, 0.9])
            else:
                p = 0.3 * p / p.norm(dim=1, keepdim=True)
            if i == 47:
                p = p * 0.15                   # a young fruit, far from the scanner
            self.scans.append((voxel_downsample(p, args.voxel), organ))

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        return self.scans[i]


def knn(x, k):
    distance = torch.cdist(x, x)
    return distance.topk(k, largest=False).indices


class EdgeConv(nn.Module):
    def __init__(self, n_in, n_out, k):
        super().__init__()
        self.k = k
        self.mlp = nn.Sequential(nn.Linear(2 * n_in, n_out), nn.LeakyReLU(0.2), nn.Linear(n_out, n_out))

    def forward(self, x):
        neighbours = x[knn(x.detach(), self.k)]
        centre = x[:, None].expand_as(neighbours)
        return self.mlp(torch.cat([centre, neighbours - centre], -1)).amax(1)


class DGCNN(nn.Module):
    def __init__(self, k, width=24, classes=3):
        super().__init__()
        self.conv1 = EdgeConv(3, width, k)
        self.conv2 = EdgeConv(width, width, k)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, points):
        a = self.conv1(points)
        b = self.conv2(a)
        h = torch.cat([a, b], -1)
        return self.head(torch.cat([h.amax(0), h.mean(0)]))


def main(args):
    torch.manual_seed(16)
    loader = DataLoader(PlantScans(args), args.clouds_per_step, shuffle=True, collate_fn=list,
                        generator=torch.Generator().manual_seed(1))
    model = DGCNN(args.k)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        for scans in loader:
            step += 1
            logits = torch.stack([model(points) for points, _ in scans])
            loss = F.cross_entropy(logits, torch.tensor([organ for _, organ in scans]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step} loss {loss.item():.5f}", flush=True)
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main(Args)
