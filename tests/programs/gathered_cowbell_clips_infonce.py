"""SimCLR on recordings of cowbells: two gains/filters of one clip are the positives, all clips of both
ranks the negatives.  The gather lets gradients through to the rank that owns the embedding."""
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel

BANDS = 24
HERD = 8            # clips per rank and step
STEPS = 30
TAU = 0.2


class GatherLayer(Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.n = x.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        me = dist.get_rank()
        return grad[me * ctx.n:(me + 1) * ctx.n]


class BellEncoder(nn.Module):
    # no biases: loudness is to scale the embedding and must not move it
    def __init__(self, dim: int = 16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(BANDS, 48, bias=False), nn.ReLU(),
            nn.Linear(48, 32, bias=False), nn.ReLU(),
            nn.Linear(32, dim, bias=False),
        )

    def forward(self, energy: Tensor) -> Tensor:
        return self.net(energy)


class PastureRecorder:
    """Band energies after the noise gate. Each bell has a fundamental and two inharmonic partials."""

    def __init__(self, rank: int):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(5150 + 7 * rank)

    def clips(self, step: int) -> Tensor:
        band = torch.arange(BANDS).float()
        f0 = 3 + 8 * torch.rand(HERD, 1, generator=self.gen)
        spec = torch.zeros(HERD, BANDS)
        for ratio, amp in ((1.0, 1.0), (1.47, 0.6), (2.09, 0.35)):
            spec += amp * torch.exp(-0.5 * (band - ratio * f0) ** 2)
        gate = spec.amax(1) > 0.2
        if step == 21 and self.rank == 1:
            gate[5] = False             # grazing cow, bell at rest: the gate stays shut
        return spec * gate.unsqueeze(1)

    def augment(self, clip: Tensor) -> Tensor:
        gain = 0.5 + torch.rand(HERD, 1, generator=self.gen)
        tilt = 1 + 0.3 * torch.randn(HERD, 1, generator=self.gen) * torch.linspace(-1, 1, BANDS)
        return (clip * gain * tilt).clamp_min(0)


def on_sphere(z: Tensor) -> Tensor:
    length = z.pow(2).sum(dim=1, keepdim=True).sqrt()
    return z / length


def info_nce(a: Tensor, b: Tensor) -> Tensor:
    every_b = GatherLayer.apply(b)
    targets = torch.arange(len(a)) + dist.get_rank() * len(a)
    return nn.functional.cross_entropy(a @ every_b.T / TAU, targets)


def run() -> None:
    rank = dist.get_rank()
    torch.manual_seed(31)
    model = DistributedDataParallel(BellEncoder())
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    pasture = PastureRecorder(rank)

    for step in range(1, STEPS + 1):
        clips = pasture.clips(step)
        views = torch.cat([pasture.augment(clips), pasture.augment(clips)])
        a, b = on_sphere(model(views)).chunk(2)
        loss = 0.5 * (info_nce(a, b) + info_nce(b, a))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step={step} infonce={loss.item():.6f}", flush=True)

    if rank == 0:
        print(f"encoder sum={sum(w.detach().double().sum().item() for w in model.parameters()):.6f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run()
    dist.destroy_process_group()
