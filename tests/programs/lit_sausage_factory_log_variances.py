"""Three measurements of a sausage line from one camera vector: Kendall's homoscedastic uncertainty, in Lightning."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class SausageLine(Dataset):
    """features -> (weight in standard units, fat share, grade). The fat probe works on every third sausage: else NaN."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 12, generator=g)
        w = torch.randn(12, 3, generator=g) / 4
        self.weight = self.x @ w[:, 0] + 0.02 * torch.randn(n, generator=g)
        self.fat = torch.sigmoid(self.x @ w[:, 1]) + 0.01 * torch.randn(n, generator=g)
        self.fat[torch.arange(n) % 3 != 0] = float("nan")
        self.grade = (self.x @ w[:, 2] > 0).long() + (self.x[:, 0] > 1).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "weight": self.weight[i], "fat": self.fat[i], "grade": self.grade[i]}


class MultiTask(L.LightningModule):
    def __init__(self, lr=1e-2):
        super().__init__()
        self.lr = lr
        self.trunk = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.weight_head = nn.Linear(64, 1)
        self.fat_head = nn.Linear(64, 1)
        self.grade_head = nn.Linear(64, 3)
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.trunk(x)
        return self.weight_head(h).squeeze(1), self.fat_head(h).squeeze(1), self.grade_head(h)

    def training_step(self, batch, batch_idx):
        weight, fat, grade = self(batch["x"])
        known = ~batch["fat"].isnan()
        l_weight = F.mse_loss(weight, batch["weight"])
        # a batch without a probed sausage contributes nothing to the fat task
        l_fat = F.mse_loss(fat[known], batch["fat"][known]) if known.any() else fat.sum() * 0.0
        l_grade = F.cross_entropy(grade, batch["grade"])
        parts = torch.stack([0.5 * l_weight, 0.5 * l_fat, l_grade])
        total = (parts * torch.exp(-self.log_var)).sum() + 0.5 * self.log_var.sum()
        correlation = torch.corrcoef(torch.stack([fat.detach(), batch["fat"]]))[0, 1]    # NaN nearly always: only shown
        self.shown = (total.item(), parts.detach().tolist(), correlation.item())
        return total

    def on_train_batch_end(self, outputs, batch, batch_idx):
        total, parts, corr = self.shown
        s = " ".join(f"{p:.6f}" for p in parts)
        print(f"batch {self.global_step} total {total:.6f} parts {s} corr {corr:.3f} "
              f"logvar {self.log_var.min().item():.5f}", flush=True)

    def configure_optimizers(self):
        slow = [p for n, p in self.named_parameters() if n != "log_var"]
        return torch.optim.AdamW([{"params": slow, "lr": self.lr},
                                  {"params": [self.log_var], "lr": 0.1, "weight_decay": 0.0}])


def main():
    L.seed_everything(8, verbose=False)
    data = SausageLine(480, seed=8)
    loader = DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(3))
    model = MultiTask()
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=5.0)
    trainer.fit(model, loader)
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
