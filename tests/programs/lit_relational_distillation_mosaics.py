"""Relational knowledge distillation (Park et al. 2019) of satellite tiles, manual optimisation of two optimizers."""
import logging
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def pairwise(e):
    return (e.unsqueeze(1) - e.unsqueeze(0)).pow(2).sum(-1).clamp(min=0)


def relations(e):
    d = pairwise(e)
    scale = d[d > 0].mean()
    return d / scale


def small_cnn(width, out):
    return nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2), nn.ReLU(),
                         nn.Flatten(), nn.Linear(width * 9, out))


class RelationalDistiller(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.teacher = small_cnn(16, 32).requires_grad_(False).eval()
        self.student = small_cnn(4, 8)
        self.head = nn.Linear(8, 5)

    def training_step(self, batch, batch_idx):
        tiles, cover = batch
        opt_student, opt_head = self.optimizers()
        with torch.no_grad():
            wanted = relations(self.teacher(tiles))
        z = self.student(tiles)
        kd = nn.functional.smooth_l1_loss(relations(z), wanted)
        self.toggle_optimizer(opt_student)
        opt_student.zero_grad()
        self.manual_backward(kd + 0.1 * z.pow(2).mean())
        opt_student.step()
        self.untoggle_optimizer(opt_student)

        ce = nn.functional.cross_entropy(self.head(z.detach()), cover)
        opt_head.zero_grad()
        self.manual_backward(ce)
        opt_head.step()
        print(f"{batch_idx + 1:3d} kd {kd.item():.6f} ce {ce.item():.6f}")

    def configure_optimizers(self):
        return (torch.optim.Adam(self.student.parameters(), lr=2e-3),
                torch.optim.SGD(self.head.parameters(), lr=0.05))


def mosaic(count=320, side=16):
    """Tiles in the order in which the scanner cuts them; one row of the mosaic lies over the edge of the orbit."""
    tiles = torch.randn(count, 1, side, side)
    cover = torch.randint(0, 5, (count,))
    tiles = tiles * 0.4 + cover.view(-1, 1, 1, 1) * 0.2
    tiles[176:192] = -1.0
    cover[176:192] = 0
    return TensorDataset(tiles, cover)


if __name__ == "__main__":
    L.seed_everything(8, verbose=False)
    model = RelationalDistiller()
    loader = DataLoader(mosaic(), batch_size=16, shuffle=False)
    with tempfile.TemporaryDirectory() as where:
        L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                  enable_model_summary=False, default_root_dir=where).fit(model, loader)
    print("final", sum(p.abs().sum().item() for p in model.parameters() if p.requires_grad))
