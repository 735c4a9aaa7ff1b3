import logging
import os
import warnings

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 4000


class PodcastClips(Dataset):
    """Half-second excerpts: two voices, music beds, and the pauses between segments."""

    def __init__(self, n=80):
        gen = torch.Generator().manual_seed(77)
        t = torch.arange(RATE // 2) / RATE
        self.clips = []
        for k in range(n):
            pitch = 90 + 160 * torch.rand(1, generator=gen)
            level = 10 ** (-1.0 - 1.2 * torch.rand(1, generator=gen))
            wave = sum(torch.sin(2 * torch.pi * pitch * h * t) / h for h in (1, 2, 3))
            breath = 0.02 * torch.randn(len(t), generator=gen)
            talk = (torch.sin(2 * torch.pi * 3 * t + k) > -0.5).float()
            self.clips.append(level * (wave * talk + breath))
        # the editor has muted the track between two segments
        self.clips[45] = self.clips[45] * 0.0

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, k):
        return self.clips[k]


class GatedLoudness(nn.Module):
    """Integrated loudness after BS.1770, absolute gate only, mono."""

    def __init__(self, block=400, hop=100, gate=-70.0):
        super().__init__()
        self.block, self.hop, self.gate = block, hop, gate

    def one(self, y):
        power = y.unfold(-1, self.block, self.hop).pow(2).mean(-1)
        level = -0.691 + 10 * torch.log10(power + 1e-12)
        heard = power[level > self.gate]
        overall = heard.mean()
        return -0.691 + 10 * torch.log10(overall)

    def forward(self, batch):
        return torch.stack([self.one(y) for y in batch])


class Leveller(L.LightningModule):
    def __init__(self, target=-23.0):
        super().__init__()
        self.eq = nn.Conv1d(1, 1, 31, padding=15, bias=False)
        self.side = nn.Sequential(nn.Conv1d(1, 6, 64, stride=32), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                                  nn.Linear(6, 1))
        self.meter = GatedLoudness()
        self.target = target
        with torch.no_grad():
            self.eq.weight.mul_(0.05)
            self.eq.weight[0, 0, 15] = 1.0

    def forward(self, x):
        gain = torch.exp(self.side(x[:, None]))
        return gain * self.eq(x[:, None]).squeeze(1)

    def training_step(self, batch, batch_idx):
        y = self(batch)
        shape = (y / y.std(-1, keepdim=True).clamp_min(1e-6) - batch / batch.std(-1, keepdim=True).clamp_min(1e-6))
        episodes = self.meter(y)
        off = (episodes.mean() - self.target) / 10
        uneven = (episodes - episodes.mean()) / 10
        return off.pow(2) + 0.5 * uneven.pow(2).mean() + 0.1 * shape.pow(2).mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(f"batch {batch_idx + 1} loss {outputs['loss'].item():.5f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main():
    L.seed_everything(9, verbose=False)
    model = Leveller()
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(PodcastClips(), batch_size=4))
    print("final", sum(p.detach().abs().sum() for p in model.parameters()).item())


if __name__ == "__main__":
    main()
