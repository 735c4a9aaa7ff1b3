"""Radar nowcasting: three scans in, the next one out, with accelerate in bfloat16 and two scenes per update.

A scan is stored as reflectivity, 10 log10(Z): a pixel without an echo is -inf there.
"""
import torch
from accelerate import Accelerator
from torch import nn

FLOOR = -12.0       # dBZ
SIDE = 14


def scene(gen, dry):
    yy, xx = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    x0, y0 = (3 + 6 * torch.rand(2, generator=gen)).tolist()
    u, v = (1.4 * torch.rand(2, generator=gen) - 0.4).tolist()
    power = 0.0 if dry else 10 ** (1.0 + 3.0 * torch.rand(1, generator=gen).item())
    scans = []
    for t in range(4):
        r2 = (xx - x0 - u * t) ** 2 + (yy - y0 - v * t) ** 2
        z = power * torch.exp(-r2 / 8.0) * (r2 < 30)
        scans.append(10 * torch.log10(z))
    return torch.stack(scans)


class Nowcaster(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.encode = nn.Conv2d(3, width, 3, padding=1)
        self.flow = nn.Conv2d(width, width, 5, padding=2)
        self.decode = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, dbz):
        x = dbz.clamp(min=FLOOR) / 10
        h = torch.relu(self.encode(x))
        h = h + torch.relu(self.flow(h))
        out = self.decode(h).float()
        return x[:, -1] + out[:, 0], out[:, 1].clamp(-4, 3)


def echo_nll(mean, log_scale, dbz):
    """Laplace likelihood of the pixels with an echo; the others do not count."""
    echo = ~torch.isinf(dbz)
    error = torch.where(echo, dbz, 0.0) / 10 - mean
    nll = error.abs() * torch.exp(-log_scale) + log_scale
    return torch.where(echo, nll, 0.0).sum() / echo.sum().clamp(min=1)


def main():
    torch.manual_seed(70)
    gen = torch.Generator().manual_seed(71)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = Nowcaster()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    updates = 0
    for number in range(1, 61):
        dry = number in (9, 10, 11, 12, 25, 26, 43)
        scans = scene(gen, dry)[None]
        with accelerator.accumulate(model):
            mean, log_scale = model(scans[:, :3])
            loss = echo_nll(mean, log_scale, scans[:, 3])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        updates += accelerator.sync_gradients
        accelerator.print(f"scene {number:2d} update {updates:2d} nll {loss.item():+.4f}")
    total = sum(p.detach().abs().sum().item() for p in model.parameters())
    accelerator.print(f"sum of |weights| {total:.5f}")


if __name__ == "__main__":
    main()
