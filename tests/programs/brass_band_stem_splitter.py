"""Stem separation demo for brass bands: melody / drum from a mono mix. Conv-TasNet in miniature, Lightning."""
import logging
import math
import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning as L  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

SR, CHUNK = 2000, 1000


def melody(n, g):
    t = torch.arange(n) / SR
    f = 110 * 2 ** (torch.randint(0, 12, (1,), generator=g) / 12)
    return sum(torch.sin(2 * math.pi * f * k * t + torch.rand(1, generator=g) * 6) / k for k in (1, 2, 3)) * 0.3


def drum(n, g, bars, bar):
    """A marching drum; in the trio section the drummer rests."""
    x = torch.zeros(n)
    if bars[0] <= bar < bars[1]:
        return x
    for hit in range(0, n, 250):
        m = min(200, n - hit)
        x[hit:hit + m] += torch.randn(m, generator=g) * torch.exp(-torch.arange(m) / 40)
    return x * 0.4


class March(Dataset):
    def __init__(self, bars=96, seed=5):
        g = torch.Generator().manual_seed(seed)
        trio = (56, 58)
        self.items = []
        for bar in range(bars):
            stems = torch.stack([melody(CHUNK, g), drum(CHUNK, g, trio, bar)])
            self.items.append((stems.sum(0), stems))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class SISNR(nn.Module):
    """Scale-invariant signal-to-noise ratio in dB, negative so that lower is better."""

    def __init__(self, eps=1e-8):
        super().__init__()
        self.eps = eps

    def forward(self, est, ref):
        est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
        scale = (est * ref).sum(-1, keepdim=True) / (ref.square().sum(-1, keepdim=True) + self.eps)
        target = scale * ref
        residual = est - target
        ratio = target.square().sum(-1) / (residual.square().sum(-1) + self.eps)
        return -(10 * torch.log10(ratio)).mean()


class TCNBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(c, 2 * c, 1), nn.PReLU(), nn.GroupNorm(1, 2 * c),
                                 nn.Conv1d(2 * c, 2 * c, 3, padding=dilation, dilation=dilation, groups=2 * c),
                                 nn.PReLU(), nn.Conv1d(2 * c, c, 1))

    def forward(self, x):
        return x + self.net(x)


class Splitter(L.LightningModule):
    def __init__(self, c=24, width=20):
        super().__init__()
        self.encoder = nn.Conv1d(1, c, width, stride=width // 2, padding=width // 2)
        self.tcn = nn.Sequential(*[TCNBlock(c, 2 ** i) for i in range(3)])
        self.masks = nn.Conv1d(c, 2 * c, 1)
        self.decoder = nn.ConvTranspose1d(c, 1, width, stride=width // 2, padding=width // 2)
        self.criterion = SISNR()

    def forward(self, mix):
        h = self.encoder(mix.unsqueeze(1)).relu()
        m = self.masks(self.tcn(h)).sigmoid().view(len(mix), 2, *h.shape[1:])
        out = self.decoder((m * h.unsqueeze(1)).flatten(0, 1))
        return out.view(len(mix), 2, -1)[..., :mix.shape[-1]]

    def training_step(self, batch, i):
        mix, stems = batch
        loss = self.criterion(self(mix), stems)
        print(f"bar-batch {i + 1} si-snr loss {loss.item():.5f} dB", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(8, verbose=False)
    model = Splitter()
    loader = DataLoader(March(), batch_size=4, shuffle=False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(model, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
