# Next-fix prediction for canal barges, data parallel by hand (no DDP): every rank sums its errors,
# the number of fixes is summed over the ranks, and the gradients are added up with all_reduce.  That
# way a rank with shorter tracks does not get a larger say.
import torch
import torch.distributed as dist
from torch import nn

CFG = dict(
    seed=9, steps=32, tracks=5, window=12, hidden=18,
    optim=dict(lr=0.08, momentum=0.8),
    decay_every=10, decay=0.6,
)


class Dataset:
    def __init__(self, rank):
        self.rng = torch.Generator().manual_seed(100 * CFG["seed"] + rank)
        self.rank = rank

    def track(self, fixes):
        speed = 0.3 + 0.4 * torch.rand(1, generator=self.rng)
        turn = 0.15 * torch.randn(fixes + 1, generator=self.rng).cumsum(0)
        move = torch.stack([turn.cos(), turn.sin()], -1) * speed
        return move + 0.02 * torch.randn(fixes + 1, 2, generator=self.rng)

    def batch(self, step):
        w = CFG["window"]
        lengths = [w] * CFG["tracks"]
        if self.rank == 1 and step == 17:
            lengths[3] = 7             # transponder off at Lock 40, the AIS window ends early
        moves = torch.zeros(CFG["tracks"], w + 1, 2)
        mask = torch.zeros(CFG["tracks"], w)
        for i, n in enumerate(lengths):
            moves[i, :n + 1] = self.track(n)
            mask[i, :n] = 1.0
        return moves[:, :-1], moves[:, 1:], mask


class Helmsman(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(2, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2)

    def forward(self, moves):
        h, _ = self.rnn(moves)
        return moves + self.out(h)      # "carries on as before" plus a correction


def miss_distance(pred, target, mask):
    """Metres between the predicted and the true fix, summed; padding does not count."""
    gap = (pred - target) * mask.unsqueeze(-1)
    return gap.square().sum(-1).sqrt().sum()


def reduce_gradients(params):
    # one flat buffer, one collective
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    at = 0
    for p in params:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def worker():
    rank = dist.get_rank()
    torch.manual_seed(CFG["seed"])      # same start on both ranks, no broadcast needed
    net = Helmsman(CFG["hidden"])
    params = list(net.parameters())
    opt = torch.optim.SGD(params, **CFG["optim"])
    data = Dataset(rank)

    for step in range(1, CFG["steps"] + 1):
        moves, target, mask = data.batch(step)
        fixes = mask.sum()
        dist.all_reduce(fixes)
        opt.zero_grad()
        loss = miss_distance(net(moves), target, mask) / fixes
        loss.backward()
        reduce_gradients(params)
        opt.step()
        if step % CFG["decay_every"] == 0:
            for group in opt.param_groups:
                group["lr"] *= CFG["decay"]

        whole = loss.detach().clone()
        dist.all_reduce(whole)
        if rank == 0:
            print(f"{step:3d} fixes={int(fixes):3d} miss={whole.item():.7f}", flush=True)

    if rank == 0:
        print("helmsman", round(sum(p.detach().double().sum().item() for p in params), 6))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker()
    dist.destroy_process_group()
