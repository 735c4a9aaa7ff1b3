"""Two processes, gloo: passengers per stop and hour, trained on the mean absolute percentage
error.  Each process has its own tram line.  torchrun --nproc_per_node=2"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Forecast(nn.Module):
    def __init__(self, history=12):
        super().__init__()
        self.gru = nn.GRU(1, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, series):
        return self.out(self.gru(series[..., None])[0][:, -1]).squeeze(-1)


def mape(prediction, actual):
    return ((prediction - actual).abs() / actual).mean()


class Line:
    """counts in tens of passengers; line 1 has a night service"""

    def __init__(self, number, length=600):
        g = torch.Generator().manual_seed(number)
        hours = torch.arange(length)
        level = 4 + 2 * torch.sin(hours / 24 * 6.2832) + torch.rand(length, generator=g)
        self.counts = (level * 10).round() / 10
        if number == 1:
            self.counts[420] = 0.0                             # the night of the storm
        self.number = number

    def batch(self, step, size=24, history=12):
        ends = torch.arange(step * size, (step + 1) * size) + history
        past = torch.stack([self.counts[e - history:e] for e in ends])
        return past, self.counts[ends]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Forecast())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    line = Line(rank)
    for step in range(24):
        past, actual = line.batch(step)
        prediction = model(past)
        loss = mape(prediction, actual)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step + 1:02d} line 0 mape {loss.item():.5f}", flush=True)
    if rank == 0:
        print("finite", int(all(p.isfinite().all() for p in model.parameters())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
