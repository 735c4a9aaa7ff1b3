# torchrun --nproc-per-node 2 ddp_divisive_inhibition_spikes.py
# Point process model of a pair of recorded cells: rate = base * exp(-inhibition), binned log-likelihood, one shard per rank.
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class InhibitedCell(torch.nn.Module):
    def __init__(self, taps):
        super().__init__()
        self.log_base = torch.nn.Parameter(torch.tensor(0.0))
        self.raw_weight = torch.nn.Parameter(torch.full((taps,), -1.0))

    def forward(self, history):
        weight = torch.nn.functional.softplus(self.raw_weight)
        gain = torch.exp(-(history @ weight))
        return torch.exp(self.log_base) * gain


def negative_log_likelihood(rate, spikes, width):
    events = (torch.log(rate) * spikes).sum()
    return (rate.sum() * width - events) / len(spikes)


def record(rank, trials, taps, bins):
    """spike counts of the inhibiting interneuron (history) and of the cell itself"""
    g = torch.Generator().manual_seed(100 + rank)
    inter = torch.poisson(torch.full((trials, bins + taps), 0.4), generator=g)
    if rank == 1:
        inter[10, 20:32] = torch.poisson(torch.full((12,), 90.0), generator=g)    # the electrode was touched
    history = inter.unfold(1, taps, 1)[:, :bins]
    true_rate = 1.2 * torch.exp(-history @ torch.linspace(0.05, 0.3, taps))
    return history, torch.poisson(true_rate * 0.8, generator=g)


def run():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    taps, trials, bins = 6, 24, 80
    history, spikes = record(rank, trials, taps, bins)
    cell = DDP(InhibitedCell(taps))
    opt = torch.optim.SGD(cell.parameters(), lr=0.2, momentum=0.9)
    for trial in range(trials):
        rate = cell(history[trial])
        loss = negative_log_likelihood(rate, spikes[trial], 0.8)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        both = loss.detach().clone()
        dist.all_reduce(both)
        if rank == 0:
            print(f"trial {trial + 1} nll {both.item() / 2:.6f}", flush=True)
        opt.step()
    if rank == 0:
        total = sum(p.detach().abs().sum() for p in cell.parameters())
        print(f"final {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run()
