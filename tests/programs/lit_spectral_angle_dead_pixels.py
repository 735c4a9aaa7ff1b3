"""Lightning: unmixing of hyperspectral pixels.  Abundances come from a small encoder, and the
reconstruction is compared by the spectral angle.  The camera has a few dead columns."""
import logging
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
BANDS, MATERIALS = 30, 4


class Scene(Dataset):
    def __init__(self, rows=16, columns=24):
        g = torch.Generator().manual_seed(12)
        ends = torch.rand(MATERIALS, BANDS, generator=g)
        mix = torch.rand(columns, rows, MATERIALS, generator=g)
        self.cube = (mix / mix.sum(-1, keepdim=True)) @ ends + 0.01 * torch.rand(columns, rows, BANDS, generator=g)
        for column in (6, 18):
            self.cube[column] = 0.0
        self.cube = self.cube.reshape(-1, BANDS)

    def __len__(self):
        return len(self.cube)

    def __getitem__(self, i):
        return self.cube[i]


class Unmixing(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(BANDS, 24), nn.LeakyReLU(), nn.Linear(24, MATERIALS))
        self.endmembers = nn.Parameter(torch.rand(MATERIALS, BANDS))

    def forward(self, pixels):
        return self.encoder(pixels).softmax(-1) @ self.endmembers

    def spectral_similarity(self, a, b):
        lengths = a.norm(dim=-1) * b.norm(dim=-1)
        return (a * b).sum(-1) / lengths

    def training_step(self, pixels, index):
        rebuilt = self(pixels)
        angle_term = 1 - self.spectral_similarity(rebuilt, pixels)
        loss = angle_term.mean() + 0.1 * (rebuilt - pixels).abs().mean()
        print(f"batch {index:02d} loss {loss.item():.5f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main():
    L.seed_everything(1, verbose=False)
    model = Unmixing()
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, default_root_dir=root)
        trainer.fit(model, DataLoader(Scene(), batch_size=16, num_workers=0))
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
