import logging
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L

GLOSSES = ["HOUSE", "MOTHER", "RAIN", "SCHOOL", "THANK-YOU"]
NECK, LEFT, RIGHT = 0, 1, 2


class KeypointClips(Dataset):
    """Clips of 6 frames x 11 body and hand keypoints, in pixels of the camera, as an estimator wrote them.
    Where it found nobody in a frame, it wrote zeros."""

    def __init__(self, clips=224, seed=3):
        rng = np.random.default_rng(seed)
        self.gloss = rng.integers(0, len(GLOSSES), clips)
        motion = rng.normal(0, 40, (len(GLOSSES), 6, 11, 2))
        motion[:, :, :3] *= 0.05
        skeleton = rng.normal(0, 60, (11, 2))
        skeleton[[NECK, LEFT, RIGHT]] = [[0, 0], [-55, 8], [55, 8]]
        place = rng.uniform(200, 400, (clips, 1, 1, 2))
        size = rng.uniform(0.6, 1.6, (clips, 1, 1, 1))
        jitter = rng.normal(0, 6, (clips, 6, 11, 2))
        self.pixels = (place + size * (skeleton + motion[self.gloss] + jitter)).astype(np.float32)
        self.pixels[131, 5] = 0.0       # the signer has stepped out of the picture

    def __len__(self):
        return len(self.gloss)

    def __getitem__(self, i):
        clip = self.pixels[i]
        neck = clip[:, NECK:NECK + 1]
        shoulders = np.linalg.norm(clip[:, LEFT] - clip[:, RIGHT], axis=-1)
        frames = (clip - neck) / shoulders[:, None, None]
        return torch.from_numpy(frames.reshape(6, 22)), int(self.gloss[i])


class GlossReader(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(22, 24)
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.head = nn.Linear(24, len(GLOSSES))

    def forward(self, frames):
        states, _ = self.gru(torch.tanh(self.embed(frames)))
        return self.head(states.mean(1))

    def training_step(self, batch, index):
        frames, gloss = batch
        loss = nn.functional.cross_entropy(self(frames), gloss)
        print(f"clips {8 * index:3d}..{8 * index + 7:3d}  step {index + 1:2d}  cross-entropy {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=4e-3)


def main():
    torch.manual_seed(12)
    reader = GlossReader()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
                        enable_checkpointing=False, enable_model_summary=False)
    trainer.fit(reader, DataLoader(KeypointClips(), batch_size=8))
    total = sum(p.detach().double().pow(2).sum().item() for p in reader.parameters())
    print(f"squared norm of the reader: {total:.6f}")


if __name__ == "__main__":
    main()
