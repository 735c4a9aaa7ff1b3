"""Two processes, gloo: playlist tower and song tower, in-batch negatives; the song itself is
hidden from its own negatives with -inf where it occurs twice.  torchrun --nproc_per_node=2"""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SONGS = 60


class Towers(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.songs = nn.Embedding(SONGS, dim)
        self.lists = nn.EmbeddingBag(SONGS, dim, mode="mean")
        self.project = nn.Linear(dim, dim)
        self.log_temp = nn.Parameter(torch.tensor(-1.0))

    def forward(self, history, target):
        query = F.normalize(self.project(self.lists(history)), dim=-1)
        key = F.normalize(self.songs(target), dim=-1)
        return query @ key.T * (-self.log_temp).exp()


def loss_of(logits, target):
    same = target[:, None] == target[None, :]
    twin = same & ~torch.eye(len(target), dtype=torch.bool)
    return F.cross_entropy(logits.masked_fill(twin, float("-inf")), torch.arange(len(target)))


def dataset():
    g = torch.Generator().manual_seed(4)
    genre = torch.randint(0, 6, (256, 1), generator=g)
    history = genre * 10 + torch.randint(0, 10, (256, 8), generator=g)
    target = (genre * 10 + torch.randint(0, 10, (256, 1), generator=g)).squeeze(1)
    return TensorDataset(history, target)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = DistributedDataParallel(Towers())
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    data = dataset()
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    step = 0
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for history, target in loader:
            step += 1
            loss = loss_of(model(history, target), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step:02d} loss {shown.item() / dist.get_world_size():8.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
