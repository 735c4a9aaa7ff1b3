import torch, math
from torch import nn
from torch.nn import Parameter

# water level in manholes after rain, graph of sewer pipes. Message passing with max, mean and min over the
# pipes that flow in; the uppermost manholes have none.


def aggregate(src, index, n, how):
    empty = {'amax': -math.inf, 'amin': math.inf}[how]
    out = src.new_full((n, src.size(1)), empty)
    out = out.scatter_reduce(0, index[:, None].expand_as(src), src, reduce=how, include_self=True)
    return out.masked_fill(out.isinf(), 0.)


def average(src, index, n):
    out = src.new_zeros(n, src.size(1)).index_add(0, index, src)
    deg = src.new_zeros(n).index_add(0, index, src.new_ones(index.numel()))
    return out / deg.clamp(min=1).unsqueeze(1), deg


class PipeConv(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.msg = nn.Linear(fin + 1, fout)
        self.upd = nn.Linear(fin + 3 * fout, fout)
        self.amplify = Parameter(torch.zeros(1))

    def forward(self, x, edge, slope):
        m = self.msg(torch.cat([x[edge[0]], slope], 1))
        mean, deg = average(m, edge[1], x.size(0))
        mx = aggregate(m, edge[1], x.size(0), 'amax')
        mn = aggregate(m, edge[1], x.size(0), 'amin')
        mx = mx * (1 + self.amplify * torch.log(deg + 1).unsqueeze(1))
        return torch.relu(self.upd(torch.cat([x, mean, mx, mn], 1)))


class Sewer(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([PipeConv(2, 12), PipeConv(12, 12), PipeConv(12, 12)])
        self.read = nn.Linear(12, 1)

    def forward(self, x, edge, slope):
        for c in self.convs:
            x = c(x, edge, slope)
        return self.read(x).squeeze(-1)


def storm(g):
    n = int(torch.randint(14, 30, (1,), generator=g))
    parent = [int(torch.randint(0, i, (1,), generator=g)) for i in range(1, n)]
    edge = torch.tensor([list(range(1, n)), parent])
    if n % 7 == 0:                       # map sheet without pipes: only basins
        edge = edge[:, :0]
    slope = torch.rand(edge.size(1), 1, generator=g)
    x = torch.rand(n, 2, generator=g)
    level = x[:, 0].clone()
    for k in range(edge.size(1) - 1, -1, -1):
        a, b = edge[:, k].tolist()
        level[b] = torch.maximum(level[b], 0.8 * level[a] + 0.3 * slope[k, 0])
    return x, edge, slope, level


torch.manual_seed(6)
g = torch.Generator().manual_seed(66)
net = Sewer()
opt = torch.optim.NAdam(net.parameters(), lr=4e-3)
for it in range(50):
    x, edge, slope, level = storm(g)
    opt.zero_grad()
    loss = nn.functional.l1_loss(net(x, edge, slope), level)
    loss.backward()
    opt.step()
    print('storm {:2d} manholes {:2d} pipes {:2d} mae {:.6f}'.format(it, x.size(0), edge.size(1), loss.item()))
print('final {:.6f}'.format(sum(p.abs().sum().item() for p in net.parameters())))
