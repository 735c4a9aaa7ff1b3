"""Rectified flow (x-prediction) on rings of snow crystals, with Accelerate."""
import copy
import math
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, math.log(100), dim // 2)))

    def forward(self, t: Tensor) -> Tensor:
        a = t[:, None] * self.freq
        return torch.cat([a.sin(), a.cos()], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, data_dim: int = 12, width: int = 64):
        super().__init__()
        self.temb = TimeEmbedding(16)
        self.inp = nn.Linear(data_dim + 16, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.out = nn.Linear(width, data_dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.inp(torch.cat([x, self.temb(t)], -1))
        for layer in self.mid:
            h = h + layer(nn.functional.silu(h))
        return self.out(h)


class RectifiedFlow:
    """x_t = (1 - t) noise + t data; the network predicts data, the loss compares velocities."""

    def __init__(self, levels: int = 1000, mean: float = 0.4, std: float = 1.9, shift: float = 3.0):
        self.levels, self.mean, self.std, self.shift = levels, mean, std, shift

    def sample_time(self, n: int) -> Tensor:
        u = torch.sigmoid(self.mean + self.std * torch.randn(n))
        u = self.shift * u / (1 + (self.shift - 1) * u)
        return torch.round(u * self.levels) / self.levels

    def loss(self, model: nn.Module, data: Tensor) -> Tensor:
        noise = torch.randn_like(data)
        t = self.sample_time(len(data))
        xt = torch.lerp(noise, data, t[:, None])
        guess = model(xt, t)
        velocity = (guess - xt) / (1 - t)[:, None]
        err = (velocity - (data - noise)).square().mean(-1)
        return (err * (1 - t)).mean()


def crystals(n: int) -> Tensor:
    arm = 1 + 0.2 * torch.randn(n, 1)
    k = torch.arange(6) * math.pi / 3 + 0.1 * torch.randn(n, 1)
    return torch.cat([arm * k.cos(), arm * k.sin()], -1)


@torch.no_grad()
def update_average(avg: nn.Module, model: nn.Module, decay: float) -> None:
    for a, p in zip(avg.parameters(), model.parameters()):
        a.lerp_(p, 1 - decay)


def main() -> None:
    set_seed(6)
    accelerator = Accelerator(cpu=True)
    data = torch.utils.data.TensorDataset(crystals(960))
    loader = torch.utils.data.DataLoader(data, batch_size=24, shuffle=True, drop_last=True)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    average = copy.deepcopy(model)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    flow = RectifiedFlow()
    for step, (batch,) in enumerate(loader, start=1):
        loss = flow.loss(model, batch)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        update_average(average, accelerator.unwrap_model(model), decay=min(0.95, step / (step + 9)))
        if accelerator.is_main_process:
            print(f"{step:>3} {loss.item():.5f}", flush=True)
    total = torch.stack([p.detach().norm() for p in accelerator.unwrap_model(model).parameters()]).norm()
    accelerator.print(f"final {total.item():.5f}")


if __name__ == "__main__":
    main()
