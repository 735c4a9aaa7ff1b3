"""One-class detector for compressor temperatures: embeddings are drawn towards the mean of good machines."""
import numpy as np
import torch

rng = np.random.default_rng(40)


def readings(n):
    """kelvin at eight places of the casing, machines that run well"""
    heat = rng.normal(0, 2.0, size=(n, 3))
    load = np.array([[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]], float)
    return torch.tensor(345 + heat @ load + rng.normal(0, 0.3, size=(n, 8)), dtype=torch.float32)


class MahalanobisHead(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("precision", torch.eye(dim))

    @torch.no_grad()
    def calibrate(self, z):
        self.centre.copy_(z.mean(0))
        self.precision.copy_(torch.linalg.inv(torch.cov(z.T) + 0.001 * torch.eye(z.shape[1])))

    def forward(self, z):
        zp = z @ self.precision
        squared = (zp * z).sum(1) - 2 * zp @ self.centre + self.centre @ self.precision @ self.centre
        return torch.sqrt(squared + 1e-6)


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.correction = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
        self.head = MahalanobisHead(8)

    def embed(self, x):
        return x + self.correction((x - 345) / 2)

    def forward(self, x):
        return self.head(self.embed(x))


def main():
    torch.manual_seed(40)
    good = readings(96)
    net = Detector()
    net.head.calibrate(net.embed(good))
    optimizer = torch.optim.Adam(net.correction.parameters(), lr=2e-2)
    for epoch in range(1, 41):
        optimizer.zero_grad()
        distance = net(good)
        loss = distance.mean()
        loss.backward()
        optimizer.step()
        print("epoch", epoch, "mean distance %.5f" % loss.item(), "farthest %.5f" % distance.max().item())
    print("correction energy:", float(sum((w.detach() ** 2).sum() for w in net.correction.parameters())))


main()
