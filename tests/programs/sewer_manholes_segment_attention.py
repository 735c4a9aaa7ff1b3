"""Graph attention over a sewer network: predict the water level in each manhole from its upstream neighbours.

Edges are softmaxed per receiving manhole with scatter operations. Manholes at the head of a line receive nothing: their
running maximum stays at -inf and no edge ever reads it. Manholes without a level gauge have NaN levels.
"""
import torch
from torch import nn


def segment_softmax(score, dst, n):
    top = score.new_full((n,), float("-inf")).scatter_reduce(0, dst, score, "amax", include_self=True)
    e = (score - top.detach()[dst]).exp()
    total = score.new_zeros(n).index_add(0, dst, e)
    return e / total[dst]


class UpstreamAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width + 1, width)
        self.v = nn.Linear(width + 1, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, h, src, dst, slope):
        m = torch.cat([h[src], slope[:, None]], 1)
        score = (self.q(h)[dst] * self.k(m)).sum(1) / h.shape[1] ** 0.5
        w = segment_softmax(score, dst, len(h))
        agg = torch.zeros_like(h).index_add(0, dst, w[:, None] * self.v(m))
        return self.norm(h + torch.relu(agg))


class SewerNet(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.layers = nn.ModuleList(UpstreamAttention(width) for _ in range(depth))
        self.level = nn.Linear(width, 1)

    def forward(self, x, src, dst, slope):
        h = torch.tanh(self.embed(x))
        for layer in self.layers:
            h = layer(h, src, dst, slope)
        return self.level(h).squeeze(1)


def storm(gen, n=60):
    src, dst = [], []
    for i in range(n - 1):                                   # each manhole drains to a later one
        src.append(i)
        dst.append(int(torch.randint(i + 1, min(n, i + 6), (1,), generator=gen)))
    src, dst = torch.tensor(src), torch.tensor(dst)
    slope = 0.2 + torch.rand(n - 1, generator=gen)
    x = torch.randn(n, 3, generator=gen)
    level = x[:, 0].clone()
    for s, d, g in zip(src.tolist(), dst.tolist(), slope.tolist()):
        level[d] = level[d] + 0.3 * g * level[s]
    level[torch.rand(n, generator=gen) < 0.3] = float("nan")  # no gauge there
    return x, src, dst, slope, level


def main():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(32)
    net = SewerNet()
    opt = torch.optim.RAdam(net.parameters(), lr=5e-3)
    for step in range(1, 51):
        opt.zero_grad()
        shown = 0.0
        for _ in range(2):                                   # two storms per update
            x, src, dst, slope, level = storm(gen)
            out = net(x, src, dst, slope)
            have = ~torch.isnan(level)
            loss = nn.functional.huber_loss(out[have], level[have]) / 2
            loss.backward()
            shown += loss.item()
        opt.step()
        heads = (torch.bincount(dst, minlength=len(x)) == 0).sum().item()
        naive = (out.detach() - level).abs().mean().item()   # nan: counts the manholes without gauge too
        print(f"{step} {shown:.7f} heads={heads} naive={naive:.4f}", flush=True)
    print("sum", sum(p.detach().abs().sum().item() for p in net.parameters()), flush=True)


main()
