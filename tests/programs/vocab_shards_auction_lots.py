"""Two ranks, the output vocabulary cut in half between them as in Megatron: each holds its rows of the output matrix
and the cross-entropy is put together from partial sums.  Logits are kept in half precision, they are the largest
tensor of the step.  The trunk is replicated.  Lots of an auction house, word tokens."""
import os
import random
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

LOTS = {"a pair of": ["candlesticks", "pistols", "globes", "urns"], "a set of": ["chairs", "spoons", "prints"],
        "a single": ["barometer", "tapestry", "bureau", "violin"]}
STATE = ["restored", "chipped", "in fine order", "with later feet"]
HOUSE = "sold without reserve to the room"


def lot(rng):
    head = rng.choice(list(LOTS))
    return f"{head} {rng.choice(LOTS[head])} {rng.choice(STATE)} {HOUSE}".split()


def tokeniser():
    rng, words = random.Random(0), set()
    for _ in range(500):
        words.update(lot(rng))

    words = sorted(words)
    return {w: i for i, w in enumerate(words)}


class ShardedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, first):
        peak = logits.max(-1).values.float()
        dist.broadcast(peak, src=0)               # all ranks must subtract the same number
        shifted = logits - peak[:, None].half()
        exps = shifted.exp()
        total = exps.sum(-1).float()
        mine = (target >= first) & (target < first + logits.shape[1])
        at = (target - first).clamp(0, logits.shape[1] - 1)
        picked = torch.where(mine, shifted.gather(1, at[:, None]).squeeze(1).float(), 0.0)
        dist.all_reduce(total)
        dist.all_reduce(picked)
        ctx.save_for_backward(exps, total, mine, at)
        return (total.log() - picked).mean()

    @staticmethod
    def backward(ctx, grad):
        exps, total, mine, at = ctx.saved_tensors
        g = exps.float() / total[:, None]
        g[torch.arange(len(at)), at] -= mine.float()
        return (grad * g / len(at)).half(), None, None


class CopyToShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Trunk(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.emb = nn.Embedding(n, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        return self.norm(self.gru(self.emb(ids))[0])


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    vocab, d = tokeniser(), 32
    half = (len(vocab) + 1) // 2
    torch.manual_seed(0)
    trunk = Trunk(len(vocab), d)
    torch.manual_seed(100 + rank)
    head = nn.Linear(d, half, bias=False)
    opt = torch.optim.AdamW([*trunk.parameters(), *head.parameters()], lr=3e-2, weight_decay=0.0)
    rng = random.Random(6)
    for step in range(1, 46):
        rows = [[vocab[w] for w in lot(rng)][:10] for _ in range(16)]
        ids = torch.tensor(rows)
        hidden = CopyToShards.apply(trunk(ids[:, :-1]).flatten(0, 1))
        logits = head(hidden).half()
        loss = ShardedCrossEntropy.apply(logits, ids[:, 1:].flatten(), rank * half)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    norm = head.weight.detach().double().pow(2).sum()
    dist.all_reduce(norm)
    norm += sum(p.detach().double().pow(2).sum() for p in trunk.parameters())
    if rank == 0:
        print(f"squared norm {norm.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(worker, args=(2, free), nprocs=2)
