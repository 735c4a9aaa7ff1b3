"""Self-distillation in Lightning with manual optimisation: a checkpointed student, an EMA teacher, two optimizers."""
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.net = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x):
        return x + self.net(self.norm(x))


class Tower(nn.Module):
    def __init__(self, size=16, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return x


class SelfDistillation(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.student, self.teacher = Tower(), Tower()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.predictor = nn.Linear(16, 16)
        self.noise = torch.Generator().manual_seed(2)

    def training_step(self, batch, batch_idx):
        tower_opt, predictor_opt = self.optimizers()
        (x,) = batch
        a = x + 0.2 * torch.randn(x.shape, generator=self.noise)
        b = x + 0.2 * torch.randn(x.shape, generator=self.noise)
        self.teacher.eval()
        with torch.no_grad():
            wanted = self.teacher(b)
        loss = -F.cosine_similarity(self.predictor(self.student(a)), wanted, dim=-1).sum()
        tower_opt.zero_grad()
        predictor_opt.zero_grad()
        self.manual_backward(loss)
        tower_opt.step()
        predictor_opt.step()
        with torch.no_grad():
            for t, s in zip(self.teacher.parameters(), self.student.parameters()):
                t.lerp_(s, 0.02)
        print(f"batch {batch_idx} loss {loss.item():.3f}")

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.student.parameters(), lr=1e-3),
                torch.optim.SGD(self.predictor.parameters(), lr=1e-3, momentum=0.9)]


if __name__ == "__main__":
    L.seed_everything(15, verbose=False)
    data = torch.randn(300, 4) @ torch.randn(4, 16)
    loader = DataLoader(TensorDataset(data), batch_size=10)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(SelfDistillation(), loader)
