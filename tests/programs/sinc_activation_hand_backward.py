"""Denoising of short audio frames with a sinc activation whose derivative is written by hand."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(27)
torch.set_num_threads(1)
FRAME = 48


class Sinc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        safe = torch.where(x == 0, torch.ones_like(x), x)
        y = torch.where(x == 0, torch.ones_like(x), safe.sin() / safe)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        slope = (x.cos() - y) / x
        return grad * slope


class SincLayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.mix = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x):
        return Sinc.apply(3.0 * self.mix(x))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = SincLayer(FRAME, 40)
        self.decode = nn.Linear(40, FRAME)

    def forward(self, x):
        return self.decode(self.encode(x))


class Frames(IterableDataset):
    """gated recording: below the threshold the recorder writes zeros"""

    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        t = torch.arange(FRAME) / FRAME
        for number in range(320):
            pitch = 2 + 4 * torch.rand((), generator=g)
            clean = torch.sin(2 * math.pi * pitch * t)
            noisy = clean + 0.2 * torch.randn(FRAME, generator=g)
            if number in (180, 181, 182):
                clean, noisy = torch.zeros(FRAME), torch.zeros(FRAME)
            yield noisy, clean


def main():
    model = Denoiser()
    opt = torch.optim.Adamax(model.parameters(), lr=5e-3)
    for step, (noisy, clean) in enumerate(DataLoader(Frames(), batch_size=10, num_workers=0), 1):
        loss = (model(noisy) - clean).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:02d} l1 {loss.item():.5f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
