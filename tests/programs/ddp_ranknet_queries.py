"""Learning to rank on two gloo processes; each process sees other queries and an averaged copy is kept."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.set_num_threads(1)


class Queries(Dataset):
    """Nine documents to a query; the list is filled up with empty documents."""

    def __init__(self, n=96):
        g = torch.Generator().manual_seed(44)
        self.documents = torch.randn(n, 9, 5, generator=g)
        self.count = torch.randint(3, 10, (n,), generator=g)
        self.gain = (self.documents[..., 0] + 0.5 * self.documents[..., 1]).round().clamp(0, 3)

    def __len__(self):
        return len(self.count)

    def __getitem__(self, i):
        present = torch.arange(9) < self.count[i]
        return self.documents[i], self.gain[i], present


def listwise(scores, gain, present):
    scores = scores.masked_fill(~present, float("-inf"))
    target = torch.softmax(gain.masked_fill(~present, float("-inf")), dim=-1)
    log_p = F.log_softmax(scores, dim=-1).masked_fill(~present, 0.0)
    return -(target * log_p).sum(-1).mean()


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 24), nn.SiLU(), nn.Linear(24, 1))
    model = DistributedDataParallel(net)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = Queries()
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    step = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for documents, gain, present in loader:
            loss = listwise(model(documents).squeeze(-1), gain, present)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(net)
            step += 1
            shared = loss.detach().clone()
            dist.all_reduce(shared)
            if rank == 0:
                print(f"step {step} loss {shared.item() / 2:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
