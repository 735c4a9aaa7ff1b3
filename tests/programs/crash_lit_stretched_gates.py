"""Distil a teacher's alarm probabilities into a small student whose output is a stretched sigmoid (hard concrete)."""
import logging, warnings
import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning.pytorch as pl

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Alarms(torch.utils.data.Dataset):
    def __init__(self, n=128):
        g = torch.Generator().manual_seed(9)
        self.x = torch.randn(n, 5, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.tensor([6.0, -4.0, 0.0, 2.0, 0.0]))

    def forward(self, x):
        return torch.sigmoid(x @ self.w)


class Student(pl.LightningModule):
    low, high = -0.05, 1.05

    def __init__(self):
        super().__init__()
        self.teacher = Teacher()
        self.net = nn.Sequential(nn.Linear(5, 12), nn.ELU(), nn.Linear(12, 1))

    def gate(self, x):
        s = torch.sigmoid(self.net(x).squeeze(-1))
        return s * (self.high - self.low) + self.low

    def training_step(self, x, _):
        with torch.no_grad():
            soft = self.teacher(x)
        prob = self.gate(x)
        loss = F.binary_cross_entropy(prob, soft)
        print("loss", loss.item(), flush=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=2e-2)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)}


pl.seed_everything(4, verbose=False)
student = Student()
pl.Trainer(max_epochs=4, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
           enable_progress_bar=False, enable_model_summary=False).fit(
    student, torch.utils.data.DataLoader(Alarms(), batch_size=16))
print(sum(p.sum() for p in student.net.parameters()).item())
