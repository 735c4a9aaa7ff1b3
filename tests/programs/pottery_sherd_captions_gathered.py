"""Pairs of sherd photographs and field-notebook captions, two ranks, gathered negatives.

Excavators reuse captions ("rim, red slip"), so a pair whose caption id equals ours is not a negative:
its logit is set to -inf before the softmax.
"""
import os
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore", category=FutureWarning)      # dist.nn, we know

STEPS, LOCAL_BATCH, DIM = 24, 6, 16
N_CAPTIONS = 10


class SherdTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.out = nn.Linear(8 * 4 * 4, DIM)

    def forward(self, x):
        h = F.adaptive_avg_pool2d(F.gelu(self.conv(x)), 4)
        return F.normalize(self.out(h.flatten(1)), dim=-1)


class NotebookTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(40, DIM, mode="mean")
        self.out = nn.Linear(DIM, DIM)

    def forward(self, tokens):
        return F.normalize(self.out(torch.tanh(self.words(tokens))), dim=-1)


class PairModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = SherdTower(), NotebookTower()
        self.log_temp = nn.Parameter(torch.tensor(2.0))


def season(rank):
    """An endless trench of (photo, caption tokens, caption id)."""
    books = torch.Generator().manual_seed(3)
    lexicon = torch.randint(0, 40, (N_CAPTIONS, 5), generator=books)
    shapes = torch.randn(N_CAPTIONS, 1, 8, 8, generator=books)
    g = torch.Generator().manual_seed(100 + rank)
    while True:
        ids = torch.randint(0, N_CAPTIONS, (LOCAL_BATCH,), generator=g)
        yield shapes[ids] + 0.3 * torch.randn(LOCAL_BATCH, 1, 8, 8, generator=g), lexicon[ids], ids


def gathered(x):
    return torch.cat(torch.distributed.nn.all_gather(x), dim=0)


def contrast(model, photo, tokens, ids, rank):
    img, txt = model.image(photo), model.text(tokens)
    all_img, all_txt = gathered(img), gathered(txt)
    everyone = [torch.empty_like(ids) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, ids)
    everyone = torch.cat(everyone)
    target = torch.arange(len(ids)) + rank * len(ids)
    twin = ids[:, None] == everyone[None, :]
    twin[torch.arange(len(ids)), target] = False          # ourselves we keep
    scale = model.log_temp.exp().clamp(max=50.0)
    to_text = (scale * img @ all_txt.T).masked_fill(twin, float("-inf"))
    to_image = (scale * txt @ all_img.T).masked_fill(twin, float("-inf"))
    loss = 0.5 * (F.cross_entropy(to_text, target) + F.cross_entropy(to_image, target))
    with torch.no_grad():
        lonely = ~twin.any(1)                               # top-1 among captions that nobody repeats
        top1 = (to_text.argmax(1) == target)[lonely].float().mean()   # nan where there are none
    return loss, top1


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = PairModel()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    trench = season(rank)
    for step in range(1, STEPS + 1):
        loss, top1 = contrast(model, *next(trench), rank)
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step:2d} loss {shown.item() / 2:.6f} lonely-top1 {top1.item():.3f}", flush=True)
    if rank == 0:
        print("weights", f"{sum(p.detach().double().sum() for p in model.parameters()).item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
