"""Deblurring strips of a scan in float16 autocast.  The scaler starts far too high and grows
every three good steps, so that it overshoots again and again: all of it is meant to happen."""
import torch
from torch import nn

torch.manual_seed(21)
torch.set_num_threads(1)


class ResidualMLP(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def strips(n, width=64):
    sharp = (torch.rand(n, width) > 0.8).float()
    kernel = torch.tensor([[[0.1, 0.2, 0.4, 0.2, 0.1]]])
    blurred = torch.nn.functional.conv1d(sharp[:, None], kernel, padding=2).squeeze(1)
    return blurred + 0.01 * torch.randn_like(blurred), sharp


class Deblur:
    def __init__(self):
        self.net = ResidualMLP()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3, weight_decay=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=3)
        self.skipped = 0

    def training_step(self, blurred, sharp):
        with torch.autocast("cpu", dtype=torch.float16):
            restored = self.net(blurred)
        return (restored.float() - sharp).square().sum(-1).mean()

    def fit(self, steps):
        for step in range(1, steps + 1):
            loss = self.training_step(*strips(32))
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            before = self.scaler.get_scale()
            self.scaler.update()
            after = self.scaler.get_scale()
            if after < before:
                self.skipped += 1
            print(f"step {step:02d} loss {loss.item():9.4f} scale 2^{torch.tensor(after).log2().item():.0f} "
                  f"skipped {self.skipped}")


if __name__ == "__main__":
    Deblur().fit(36)
