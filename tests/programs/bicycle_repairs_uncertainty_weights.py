"""Three tasks from one bicycle repair ticket, weighted by learned uncertainties."""
import math
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Tickets(Dataset):
    """Features, minutes of work (nan: never timed), part that failed (-1: not noted), will return (nan: too recent)."""

    def __init__(self, n=840, seed=12):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 10, generator=g)
        w = torch.randn(10, generator=g) * 0.3
        self.minutes = (self.x @ w + 0.02 * torch.randn(n, generator=g))
        self.part = (self.x[:, :4] + 0.1 * torch.randn(n, 4, generator=g)).argmax(1)
        self.back = (self.x[:, 5] * self.x[:, 6] > 0).float()
        self.minutes[torch.rand(n, generator=g) < 0.2] = float("nan")
        self.part[torch.rand(n, generator=g) < 0.3] = -1
        self.part[240:312] = -1                     # the clerk was on holiday
        self.back[620:] = float("nan")              # too recent to know

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.minutes[i], self.part[i], self.back[i]


class Workshop(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.heads = nn.ModuleDict({"minutes": nn.Linear(48, 1), "part": nn.Linear(48, 4), "back": nn.Linear(48, 1)})
        self.log_var = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in self.heads})
        for p in self.body[0].parameters():         # the first layer comes from last year's model and stays
            p.requires_grad_(False)

    def task_losses(self, batch):
        x, minutes, part, back = batch
        h = self.body(x)
        timed, noted, known = ~minutes.isnan(), part >= 0, ~back.isnan()
        yield "minutes", F.mse_loss(self.heads["minutes"](h).squeeze(1)[timed], minutes[timed]), int(timed.sum())
        yield "part", F.cross_entropy(self.heads["part"](h)[noted], part[noted]), int(noted.sum())
        yield "back", F.binary_cross_entropy_with_logits(self.heads["back"](h).squeeze(1)[known],
                                                         back[known]), int(known.sum())

    def training_step(self, batch, batch_idx):
        total, shown = torch.zeros(()), []
        for name, value, count in self.task_losses(batch):
            shown.append(f"{name} {value.item():.5f}")      # nan where nobody has this label today
            if count == 0:
                continue
            s = self.log_var[name]
            total = total + 0.5 * torch.exp(-s) * value + 0.5 * s
        print(f"{self.global_step + 1:2d} total {total.item():+.7f} " + " ".join(shown), flush=True)
        return total

    def configure_optimizers(self):
        weights = [p for n, p in self.named_parameters() if p.requires_grad and not n.startswith("log_var")]
        return torch.optim.AdamW([{"params": weights, "lr": 4e-3},
                                  {"params": list(self.log_var.parameters()), "lr": 0.2, "weight_decay": 0.0}])


def main():
    L.seed_everything(7, verbose=False)
    model = Workshop()
    loader = DataLoader(Tickets(), batch_size=24, shuffle=False)
    trainer = L.Trainer(accelerator="cpu", max_steps=35, logger=False, enable_checkpointing=False, barebones=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    spread = {k: math.exp(v.item() / 2) for k, v in model.log_var.items()}
    print("spreads " + " ".join(f"{k} {v:.5f}" for k, v in spread.items()), flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
