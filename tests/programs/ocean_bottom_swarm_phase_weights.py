# Phase picker for the ocean-bottom network (P / S / noise per sample, soft Gaussian labels).
# Lightning version of the group's old script.  Class weights are now computed per batch because
# the swarm makes the global ones useless.
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

N = 128        # samples per window
BATCH = 8
BATCHES = 40


def gaussian(center, width=3.0):
    t = torch.arange(N).float()
    g = torch.exp(-0.5 * ((t - center) / width) ** 2)
    return torch.where(g < 1e-3, torch.zeros_like(g), g)   # compact support, as in the catalogue


def make_catalogue():
    gen = torch.Generator().manual_seed(404)
    waves, labels = [], []
    for b in range(BATCHES):
        for k in range(BATCH):
            w = 0.1 * torch.randn(3, N, generator=gen)
            p = int(torch.randint(15, 50, (1,), generator=gen))
            s = p + int(torch.randint(20, 50, (1,), generator=gen))
            # S arrivals are lost on stations where the sediment is thick; batch 33 is the hour
            # in which only the three vertical-only instruments were online
            has_s = b != 33 and (k < 2 or bool(torch.rand(1, generator=gen) < 0.6))
            w[0, p:] += torch.exp(-torch.arange(N - p) / 12.0) * torch.sin(torch.arange(N - p) * 0.9)
            y = torch.zeros(3, N)
            y[0] = gaussian(p)
            if has_s:
                w[1:, s:] += 1.5 * torch.exp(-torch.arange(N - s) / 18.0) * torch.sin(torch.arange(N - s) * 0.5)
                y[1] = gaussian(s)
            y[2] = (1.0 - y[0] - y[1]).clamp(min=0)
            waves.append(w)
            labels.append(y / y.sum(0, keepdim=True))
    return TensorDataset(torch.stack(waves), torch.stack(labels))


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 7, stride=stride, padding=3)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))


class Picker(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = Block(3, 8, 1), Block(8, 16, 2)
        self.mid = Block(16, 16, 1)
        self.up = nn.ConvTranspose1d(16, 8, 4, stride=2, padding=1)
        self.head = nn.Conv1d(16, 3, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.mid(self.down2(a))
        return self.head(torch.cat([a, self.up(b)], 1))

    def training_step(self, batch, idx):
        wave, label = batch
        logp = F.log_softmax(self(wave), 1)
        mass = label.sum(dim=(0, 2))
        weight = label.sum() / (3.0 * mass)
        weight = weight.sqrt().view(1, 3, 1)
        return -(weight * label * logp).sum(1).mean()

    def on_train_batch_end(self, outputs, batch, idx):
        print(f"window-batch {idx + 1} loss {outputs['loss'].item():.8f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.NAdam(self.parameters(), lr=2e-3)


L.seed_everything(7, verbose=False)
picker = Picker()
trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(picker, DataLoader(make_catalogue(), batch_size=BATCH, shuffle=False))
print(f"{sum(p.detach().abs().sum().item() for p in picker.parameters()):.6f}", flush=True)
