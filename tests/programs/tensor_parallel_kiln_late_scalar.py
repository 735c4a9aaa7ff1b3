"""Glaze colour from kiln curves. Megatron-like tensor parallelism with parallelize_module on a 1 x 2 mesh.

The mesh has a data dimension of size one (we run the same script on 4 and 8 ranks in the lab), whose process groups
hold a single rank each; its all_reduce does nothing here. A calibration offset per laboratory is added to the optimizer
in the middle of the run, when the spectrometer readings come in.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

CFG = {"points": 20, "width": 24, "blocks": 2, "steps": 30, "calibrate_from": 14, "batch": 16, "lr": 3e-3}


class Mix(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.norm = nn.LayerNorm(w)
        self.up, self.gate, self.down = nn.Linear(w, 4 * w), nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Glaze(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.read = nn.Linear(cfg["points"], cfg["width"])
        self.mix = nn.ModuleList(Mix(cfg["width"]) for _ in range(cfg["blocks"]))
        self.lab = nn.Linear(cfg["width"], 3)  # L*, a*, b*
        self.offset = None

    def calibrate(self):
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, curve):
        h = self.read(curve)
        for m in self.mix:
            h = m(h)
        colour = self.lab(h)
        return colour if self.offset is None else colour + self.offset


PLAN = {"up": ColwiseParallel(), "gate": ColwiseParallel(), "down": RowwiseParallel()}


def firing(gen, cfg):
    """Ramp, soak, cooling; temperature in hundreds of degrees."""
    peak = 9 + 4 * torch.rand(cfg["batch"], 1, generator=gen)
    x = torch.linspace(0, 1, cfg["points"])
    curve = peak * torch.exp(-(((x - 0.6) / 0.25) ** 2)) + 0.1 * torch.randn(cfg["batch"], cfg["points"], generator=gen)
    p = (peak.squeeze(1) - 11) / 2
    colour = torch.stack([p.tanh(), p * p - 0.5, torch.sin(2 * p)], 1) + 0.4
    return curve / 10, colour


def mean_over(params, group):
    for p in params:
        if p.grad is None:
            continue
        g = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        dist.all_reduce(g, group=group)
        g /= dist.get_world_size(group)


def main(cfg=CFG):
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    rank = dist.get_rank()
    tp, dp = mesh["tensor"], mesh["data"]
    torch.manual_seed(77)
    model = Glaze(cfg)
    for block in model.mix:
        parallelize_module(block, tp, PLAN)
    # DTensors and plain tensors do not mix in one foreach call
    sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
    plain = [p for p in model.parameters() if not isinstance(p, DTensor)]
    opt = torch.optim.Adam([{"params": sharded}, {"params": plain}], lr=cfg["lr"], foreach=False)
    gen = torch.Generator().manual_seed(5 + dp.get_local_rank())

    for step in range(1, cfg["steps"] + 1):
        if step == cfg["calibrate_from"]:
            dist.barrier()
            model.calibrate()
            plain.append(model.offset)
            opt.add_param_group({"params": [model.offset], "lr": 0.05})
        curve, colour = firing(gen, cfg)
        error = model(curve) - colour
        loss = error.square().sum()  # summed, over batch and channels
        opt.zero_grad()
        loss.backward()
        mean_over(sharded, dp.get_group())
        mean_over(plain, dp.get_group())
        mean_over(plain, tp.get_group())  # they are equal but for rounding; keep them so
        opt.step()
        if rank == 0:
            off = "-" if model.offset is None else f"{model.offset.item():+.5f}"
            print(f"firing {step:2d}: sum of squares {loss.item():.5f}, offset {off}")
    dist.barrier(group=tp.get_group())
    total = 0.0
    for p in model.parameters():
        q = p.redistribute(placements=[Replicate()]).to_local() if isinstance(p, DTensor) else p
        total += q.detach().double().sum().item()
    if rank == 0:
        print(f"kiln off. weights {total:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
