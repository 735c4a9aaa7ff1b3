# Mixture of experts for the sound level of foghorns at a listening post.  Two workers under DDP.
# Experts are benched in turn (logit -inf), so some of them get no gradient: find_unused_parameters.
import math
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONFIG = dict(experts=5, top=2, width=16, hidden=24, steps=36, batch=12, lr=8e-3, z=1e-3)


class Expert(nn.Sequential):
    def __init__(self, d, h):
        super().__init__(nn.Linear(d, h), nn.SiLU(), nn.Linear(h, d))


class Router(nn.Module):
    def __init__(self, d, n, k):
        super().__init__()
        self.score = nn.Linear(d, n, bias=False)
        self.k = k

    def forward(self, x, bench):
        raw = self.score(x)
        raw = raw.masked_fill(bench, float("-inf"))          # not available this step
        kth = raw.topk(self.k, dim=-1).values[:, -1:]
        gates = raw.masked_fill(raw < kth, float("-inf")).softmax(-1)
        return gates, torch.logsumexp(raw, -1)


class FoghornNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.stem = nn.Linear(6, c["width"])
        self.router = Router(c["width"], c["experts"], c["top"])
        self.experts = nn.ModuleList(Expert(c["width"], c["hidden"]) for _ in range(c["experts"]))
        self.norm = nn.LayerNorm(c["width"])
        self.out = nn.Linear(c["width"], 2)

    def forward(self, x, bench):
        h = torch.tanh(self.stem(x))
        gates, z = self.router(h, bench)
        mix = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            rows = gates[:, i].nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            mix = mix.index_add(0, rows, gates[rows, i, None] * expert(h[rows]))
        mu, log_sigma = self.out(self.norm(h + mix)).unbind(-1)
        return mu, log_sigma.clamp(-6, 3), z, gates.detach()


def listening_post(g, n):
    x = torch.randn(n, 6, generator=g)
    y = 0.05 * torch.sin(2 * x[:, 0]) + 0.03 * x[:, 1] * (x[:, 2] > 0)
    return x, y + 0.003 * torch.randn(n, generator=g)


def specialisation(gates):
    """How far the gate of the loudest of the benched-most expert is from its mean (nan where it had no rows)."""
    last = gates[:, -1]
    used = last[last > 0]
    return used.mean().item(), (used.amax() if len(used) else torch.tensor(float("-inf"))).item()


def main(c=CONFIG):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    net = DistributedDataParallel(FoghornNet(c), find_unused_parameters=True)
    opt = torch.optim.AdamW(net.parameters(), lr=c["lr"])
    g = torch.Generator().manual_seed(40 + rank)
    for step in range(c["steps"]):
        bench = torch.zeros(c["experts"], dtype=torch.bool)
        bench[(-1 - step) % c["experts"]] = True
        if step % 9 < 3:                                     # every now and then two rest
            bench[(1 + step) % c["experts"]] = True
        x, y = listening_post(g, c["batch"])
        mu, ls, z, gates = net(x, bench)
        nll = (0.5 * ((y - mu) / ls.exp()) ** 2 + ls).mean() + 0.5 * math.log(2 * math.pi)
        loss = nll + c["z"] * z.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        load = gates.gt(0).float().sum(0)
        dist.all_reduce(load)
        if rank == 0:
            mean, top = specialisation(gates)
            print(f"{step + 1:3d}  loss {loss.item():+.5f}  nll {nll.item():+.5f}  last expert {mean:.4f}/{top:.4f}"
                  f"  load {load.int().tolist()}", flush=True)
    if rank == 0:
        print("sum of weights", f"{sum(p.detach().sum().item() for p in net.parameters()):.5f}")
    dist.barrier()
    del net
    dist.destroy_process_group()


main()
