import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

WORLD = 2
EPOCHS = 2


def load_shard(rank):
    """64 pupils of one school: 6 questionnaire features and the percentile reached in the exam, a whole number."""
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(64, 6, generator=g)
    ability = x @ torch.tensor([.8, -.3, .5, 0., .2, .1]) + .4 * torch.randn(64, generator=g)
    percentile = (100 * torch.special.ndtr(ability)).round().clamp(1, 99)
    if rank == 1:
        percentile[37] = 100                     # the best of her year
    return TensorDataset(x, percentile)


def to_normal_score(percentile):
    p = percentile / 100
    return math.sqrt(2) * torch.erfinv(2 * p - 1)


def worker(rank, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(load_shard(rank), batch_size=8, shuffle=False)
    step = 0
    for epoch in range(EPOCHS):
        for features, percentile in loader:
            step += 1
            predicted = model(features).squeeze(1)
            loss = torch.nn.functional.mse_loss(predicted, to_normal_score(percentile))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {mean.item() / WORLD!r}", flush=True)
    if rank == 0:
        print(sum(p.detach().sum().item() for p in model.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    mp.start_processes(worker, args=(os.path.join(folder, "meet"),), nprocs=WORLD, start_method="fork")
