"""Parametric t-SNE of glass shards (refractive index and eight oxides) for a forensic comparison.

The encoder is trained so that neighbours in composition stay neighbours on a two-dimensional map. As in the
paper of van der Maaten (2009) the affinities P are computed once per fixed chunk of samples.
"""
import math

import torch
from torch import nn

PERPLEXITY = 12.0
CHUNK = 64


def synth_shards(n, gen):
    """Shards of five panes: each pane has its own mean composition."""
    panes = torch.randn(5, 9, generator=gen) * 2.0
    owner = torch.randint(0, 5, (n,), generator=gen)
    return panes[owner] + 0.4 * torch.randn(n, 9, generator=gen), owner


def squared_distances(a):
    gram = a @ a.T
    sq = gram.diagonal()
    return (sq[:, None] + sq[None, :] - 2 * gram).clamp(min=0)


def conditional_p(d, beta):
    return torch.softmax(-d * beta[:, None], dim=1)


def affinities(x):
    """Binary search of the bandwidths. A point is never its own neighbour: its distance to itself is infinite."""
    d = squared_distances(x)
    d.fill_diagonal_(math.inf)
    lo = torch.zeros(len(x))
    hi = torch.full((len(x),), math.inf)
    beta = torch.ones(len(x))
    for _ in range(40):
        p = conditional_p(d, beta)
        entropy = -torch.special.xlogy(p, p).sum(1)
        too_wide = entropy > math.log(PERPLEXITY)
        lo = torch.where(too_wide, beta, lo)
        hi = torch.where(too_wide, hi, beta)
        beta = torch.where(hi.isinf(), beta * 2, (lo + hi) / 2)
    p = conditional_p(d, beta)
    return (p + p.T) / (2 * len(x))


class MapEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.to_map = nn.Linear(48, 2)

    def forward(self, x):
        return self.to_map(self.body(x))


def kullback_leibler(p, z):
    d = squared_distances(z)
    d = d.masked_fill(torch.eye(len(z), dtype=torch.bool), math.inf)
    q = 1.0 / (1.0 + d)
    q = q / q.sum()
    ratio = torch.where(p > 0, p / (q + 1e-12), torch.ones_like(p))
    return (p * ratio.log()).sum()


def main():
    torch.manual_seed(77)
    gen = torch.Generator().manual_seed(78)
    x, owner = synth_shards(4 * CHUNK, gen)
    chunks = [(c, affinities(c)) for c in x.split(CHUNK)]
    encoder = MapEncoder()
    opt = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    for epoch in range(9):
        exaggeration = 4.0 if epoch < 2 else 1.0
        for i, (c, p) in enumerate(chunks):
            loss = kullback_leibler(p * exaggeration, encoder(c))
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} chunk {i} kl {loss.item():.4f}")
    with torch.no_grad():
        z = encoder(x)
        nearest = torch.cdist(z, z).fill_diagonal_(math.inf).argmin(1)
    print(f"same pane as nearest {(owner[nearest] == owner).float().mean().item():.3f}")
    print("finite", int(all(p.isfinite().all() for p in encoder.parameters())))


if __name__ == "__main__":
    main()
