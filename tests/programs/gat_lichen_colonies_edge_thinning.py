"""Graph attention over lichen colonies on a churchyard wall: which colonies are of the same species group.

Dense GAT with an adjacency mask. For regularisation edges are dropped at random at each step (DropEdge), and the
rate is raised over the run, from nothing to a little more than half.
"""
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Wall:
    def __init__(self, n=40, feats=8, groups=4, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.group = torch.randint(0, groups, (n,), generator=g)
        self.place = torch.rand(n, 2, generator=g)
        self.x = torch.randn(n, feats, generator=g) * 0.7
        self.x[:, :groups] += F.one_hot(self.group, groups).float()
        near = torch.cdist(self.place, self.place)
        k = near.topk(9, largest=False).indices[:, 1:]          # eight neighbours, not itself
        self.adj = torch.zeros(n, n, dtype=torch.bool)
        self.adj.scatter_(1, k, True)
        self.adj |= self.adj.T.clone()

    def thinned(self, rate, g):
        keep = torch.rand(self.adj.shape, generator=g).triu(1)
        keep = (keep + keep.T) >= rate
        return self.adj & keep


class DenseGAT(nn.Module):
    def __init__(self, d_in, d_out, heads):
        super().__init__()
        self.heads, self.d = heads, d_out
        self.lin = nn.Linear(d_in, heads * d_out, bias=False)
        self.src = nn.Parameter(torch.randn(heads, d_out) * 0.3)
        self.dst = nn.Parameter(torch.randn(heads, d_out) * 0.3)
        self.skip = nn.Linear(d_in, heads * d_out)

    def forward(self, x, adj):
        h = self.lin(x).view(len(x), self.heads, self.d)
        left, right = (h * self.src).sum(-1), (h * self.dst).sum(-1)
        score = F.leaky_relu(left[:, None] + right[None], 0.2)               # n, n, heads
        score = score.masked_fill(~adj[..., None], float("-inf"))
        attn = torch.softmax(score, dim=1)
        mixed = torch.einsum("ijh,jhd->ihd", attn, h).flatten(1)
        return mixed + self.skip(x)


class LichenNet(nn.Module):
    def __init__(self, feats, groups):
        super().__init__()
        self.one = DenseGAT(feats, 8, 3)
        self.two = DenseGAT(24, groups, 1)

    def forward(self, x, adj):
        return self.two(F.elu(self.one(x, adj)), adj)


@contextlib.contextmanager
def step_of(opt):
    opt.zero_grad(set_to_none=True)
    yield
    opt.step()


def main():
    torch.manual_seed(7)
    wall = Wall(seed=19)
    g = torch.Generator().manual_seed(SEED)
    net = LichenNet(wall.x.shape[1], 4)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-4)
    known = torch.arange(0, 40, 2)
    for epoch in range(1, EPOCHS + 1):
        rate = TOP_RATE * (epoch - 1) / (EPOCHS - 1)
        adj = wall.thinned(rate, g)
        with step_of(opt):
            loss = F.cross_entropy(net(wall.x, adj)[known], wall.group[known])
            loss.backward()
        print(f"epoch {epoch:2d}  dropped {rate:.3f}  edges {int(adj.sum()) // 2:3d}  loss {loss.item():.6f}")
    print("weights sum", sum(p.double().sum().item() for p in net.parameters()))


SEED, EPOCHS, TOP_RATE = 4, 40, 0.55

if __name__ == "__main__":
    main()
