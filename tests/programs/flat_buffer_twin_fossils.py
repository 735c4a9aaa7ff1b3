"""Siamese net on outlines of ammonites. Data parallel by hand: DDP was too slow to start on the lab machines,
one flat buffer is all that is needed here.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors as flatten, _unflatten_dense_tensors as unflatten

MARGIN = 1.5
POINTS = 32


def outline(species, specimen):
    """Radius over angle; a species is a set of harmonics, a specimen a perturbation of it."""
    gs = torch.Generator().manual_seed(1000 + species)
    gp = torch.Generator().manual_seed(50_000 + specimen)
    t = torch.linspace(0, 2 * torch.pi, POINTS + 1)[:-1]
    r = torch.ones(POINTS)
    for k in range(1, 6):
        a, ph = torch.rand(2, generator=gs)
        r = r + 0.4 * a / k * torch.cos(k * t + 6.28 * ph)
    return r + 0.05 * torch.randn(POINTS, generator=gp)


def draw_pairs(rank, step, n=10):
    g = torch.Generator().manual_seed(7919 * step + rank)
    left, right, same = [], [], []
    for _ in range(n):
        s1, s2 = torch.randint(0, 9, (2,), generator=g).tolist()
        # a catalogue number is species * 400 + tray
        n1, n2 = torch.randint(0, 200, (1,), generator=g).item(), torch.randint(200, 400, (1,), generator=g).item()
        if torch.rand((), generator=g) < 0.5:
            s2 = s1
        left.append((s1, s1 * 400 + n1))
        right.append((s2, s2 * 400 + n2))
        same.append(float(s1 == s2))
    if (rank, step) == (1, 22):
        # the museum sent drawer 4 twice; second accession of the same plaster cast
        right[6] = left[6]
        same[6] = 1.0
    stack = lambda xs: torch.stack([outline(*x) for x in xs])
    return stack(left), stack(right), torch.tensor(same)


class FlatSync:
    def __init__(self, module):
        self.ps = list(module.parameters())
        for q in self.ps:
            dist.broadcast(q.data, 0)

    def __call__(self):
        grads = [q.grad for q in self.ps]
        buf = flatten(grads)
        dist.all_reduce(buf)
        buf /= dist.get_world_size()
        for g, new in zip(grads, unflatten(buf, grads)):
            g.copy_(new)


def pair_loss(net, a, b, same):
    u, v = net(a), net(b)
    d = torch.sqrt((u - v).pow(2).sum(dim=1))
    pull = same * d.pow(2)
    push = (1 - same) * (MARGIN - d).clamp(min=0).pow(2)
    return 0.5 * (pull + push).mean()


def build():
    return nn.Sequential(
        nn.Unflatten(1, (1, POINTS)),
        nn.Conv1d(1, 8, 5, padding=2, padding_mode="circular"), nn.SiLU(),
        nn.Conv1d(8, 8, 5, stride=2, padding=2, padding_mode="circular"), nn.SiLU(),
        nn.Flatten(), nn.Linear(8 * POINTS // 2, 24), nn.SiLU(), nn.Linear(24, 6))


def main():
    dist.init_process_group(backend="gloo")
    me = dist.get_rank()
    torch.manual_seed(100 + me)      # FlatSync makes them equal
    net = build()
    sync = FlatSync(net)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for step in range(1, 41):
        loss = pair_loss(net, *draw_pairs(me, step))
        opt.zero_grad()
        loss.backward()
        sync()
        opt.step()
        if me == 0:
            print(f"it={step} contrastive={loss.item():.7f}", flush=True)
    if me == 0:
        print("theta.sum() =", round(sum(q.double().sum().item() for q in net.parameters()), 6), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
