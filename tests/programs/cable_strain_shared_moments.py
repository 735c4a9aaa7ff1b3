# Strain gauges on a cable bridge, DDP, batch norm over both ranks with our own statistics
# (SyncBatchNorm wants GPUs). One all_reduce carries sum, sum of squares and count.
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dfn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

warnings.filterwarnings("ignore", category=FutureWarning)      # torch renames things faster than we do

SETTINGS = {"steps": 28, "windows": 6, "channels": 4, "length": 16, "lr": 0.02}


class SharedMoments1d(nn.Module):
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps, self.momentum = eps, momentum
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):                                   # (batch, channels, time)
        if not self.training:
            mean, var = self.running_mean, self.running_var
        else:
            c = x.shape[1]
            packed = torch.cat([x.sum((0, 2)), (x * x).sum((0, 2)), x.new_tensor([x.numel() / c])])
            packed = dfn.all_reduce(packed)
            mean, count = packed[:c] / packed[-1], packed[-1]
            var = packed[c:2 * c] / count - mean * mean     # E[x^2] - E[x]^2, one pass
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var, self.momentum)
        inv = torch.rsqrt(var + self.eps)
        return (x - mean[:, None]) * (inv * self.gain)[:, None] + self.bias[:, None]


class StrainNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.entry = SharedMoments1d(channels)
        self.conv = nn.Conv1d(channels, 12, 5, padding=2)
        self.mid = SharedMoments1d(12)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        h = torch.relu(self.mid(self.conv(self.entry(x))))
        return self.out(h.mean(-1)).squeeze(-1)


def windows(step, rank, s):
    """Micro-strain and the load of the lorry that caused it."""
    g = torch.Generator().manual_seed(step * 2 + rank)
    load = torch.rand(s["windows"], generator=g)
    wave = torch.sin(torch.linspace(0, 6.28, s["length"]))
    x = load[:, None, None] * wave + 0.1 * torch.randn(s["windows"], s["channels"], s["length"], generator=g)
    offsets = torch.tensor([0.0, 2.0, -3.0, 5.0])[:, None]
    x = x + offsets
    if step == 18:
        # the logger lost its tare: gauge 2 reports the raw, nearly constant bridge voltage in counts
        x[:, 2] = 41911.9 + 0.001 * x[:, 2]
    return x, load


def train(s):
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DDP(StrainNet(s["channels"]), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=s["lr"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, s["steps"])
    for step in range(1, s["steps"] + 1):
        x, load = windows(step, rank, s)
        loss = nn.functional.mse_loss(model(x), load)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if rank == 0:
            print(f"{step:3d} mse {loss.item():.7f}", flush=True)
    if rank == 0:
        print(f"end {sum(p.detach().double().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(SETTINGS)
    dist.destroy_process_group()
