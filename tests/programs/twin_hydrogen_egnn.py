"""E(n)-equivariant message passing on small molecules, target: formation energy (made up here).
Geometry is refined inside the network, so gradients run through the coordinates."""

import torch
import torch.nn as nn

SEED = 18
torch.manual_seed(SEED)
torch.set_num_threads(1)
KINDS = {"H": 0, "C": 1, "N": 2, "O": 3}


def make_molecule(g, n):
    z = torch.randint(0, 4, (n,), generator=g)
    pos = torch.randn(n, 3, generator=g) * 1.5
    return z, pos


def make_set(count):
    g = torch.Generator().manual_seed(SEED)
    mols = []
    for i in range(count):
        z, pos = make_molecule(g, int(torch.randint(4, 8, (1,), generator=g)))
        if i == 91:
            # xyz file where the hydrogens of a methyl group were entered twice
            z = torch.cat([z, torch.tensor([KINDS["H"], KINDS["H"]])])
            pos = torch.cat([pos, torch.tensor([[0.63, 0.63, 0.63], [0.63, 0.63, 0.63]])])
        d = torch.cdist(pos, pos) + torch.eye(len(z)) * 9
        e = -(1.0 / (0.5 + d)).sum() * 0.2 + 0.1 * z.float().sum()
        mols.append((z, pos, e))
    return mols


def join(mols):
    """One big graph: complete graphs side by side."""
    z = torch.cat([m[0] for m in mols])
    pos = torch.cat([m[1] for m in mols])
    y = torch.stack([m[2] for m in mols])
    owner, src, dst, base = [], [], [], 0
    for k, m in enumerate(mols):
        n = len(m[0])
        owner += [k] * n
        for i in range(n):
            for j in range(n):
                if i != j:
                    src.append(base + i)
                    dst.append(base + j)
        base += n
    return z, pos, torch.tensor(src), torch.tensor(dst), torch.tensor(owner), y


class EGCL(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * d + 1, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.node = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, d))
        self.shift = nn.Linear(d, 1, bias=False)
        nn.init.normal_(self.shift.weight, std=1e-2)

    def forward(self, h, x, src, dst):
        rel = x[src] - x[dst]
        sq = (rel * rel).sum(-1, keepdim=True)
        dist = torch.sqrt(sq)
        m = self.edge(torch.cat([h[src], h[dst], dist], -1))
        x = x + torch.zeros_like(x).index_add(0, src, rel / (dist + 1.0) * self.shift(m))
        agg = torch.zeros_like(h).index_add(0, src, m)
        return h + self.node(torch.cat([h, agg], -1)), x


class EGNN(nn.Module):
    def __init__(self, d=24, layers=2):
        super().__init__()
        self.emb = nn.Embedding(4, d)
        self.layers = nn.ModuleList(EGCL(d) for _ in range(layers))
        self.read = nn.Linear(d, 1)

    def forward(self, z, x, src, dst, owner, n):
        h = self.emb(z)
        for layer in self.layers:
            h, x = layer(h, x, src, dst)
        return torch.zeros(n).index_add(0, owner, self.read(h).squeeze(-1))


mols = make_set(128)
net = EGNN()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(32):
    batch = mols[step * 4 : step * 4 + 4]
    z, pos, src, dst, owner, y = join(batch)
    loss = nn.functional.l1_loss(net(z, pos, src, dst, owner, len(batch)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"batch {step + 1:2d} atoms {len(z):2d} mae {loss.item():.6f}")
print(f"param sum {sum(p.detach().double().sum().item() for p in net.parameters()):.6f}")
