"""Two farms predict the share of cracked eggs of a crate. torchrun --nproc-per-node 2, gloo."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CRATES = {0: 72, 1: 64}
BATCH, EPOCHS = 8, 4


def farm_table(rank):
    g = torch.Generator().manual_seed(100 + rank)
    n = CRATES[rank]
    hen_age = 20 + 50 * torch.rand(n, generator=g)
    shell = 0.42 - 0.002 * (hen_age - 20) + 0.02 * torch.randn(n, generator=g)
    road = 5 + 60 * torch.rand(n, generator=g)
    frost = (torch.rand(n, generator=g) < 0.2).float()
    x = torch.stack([(hen_age - 45) / 15, (shell - 0.37) / 0.04, (road - 35) / 18, frost], 1)
    y = 0.05 + 0.02 * x[:, 0] - 0.03 * x[:, 1] + 0.02 * x[:, 2] * frost + 0.01 * torch.randn(n, generator=g)
    return x, y[:, None] * 10


class CrackModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU())
        self.share = nn.Linear(24, 1)
        self.log_var = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.share(self.trunk(x)), self.log_var


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x, y = farm_table(rank)

    longest = torch.tensor(len(x))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)      # both farms make the same number of rounds

    model = DistributedDataParallel(CrackModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.MSELoss()
    order = torch.Generator().manual_seed(rank)
    step = 0
    for epoch in range(EPOCHS):
        perm = torch.randperm(len(x), generator=order)
        for lo in range(0, int(longest), BATCH):
            rows = perm[lo:lo + BATCH]
            optimizer.zero_grad()
            prediction, log_var = model(x[rows])
            loss = 0.5 * (criterion(prediction, y[rows]) * torch.exp(-log_var) + log_var)
            loss.backward()
            optimizer.step()
            step += 1
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {shown.item() / 2:.5f}", flush=True)
    if rank == 0:
        total = sum(p.detach().double().pow(2).sum().item() for p in model.parameters())
        print(f"squared weights {total:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
