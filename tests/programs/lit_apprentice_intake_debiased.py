"""Screening of apprenticeship applications without leaning on the applicant's district.

Adversarial debiasing (an adversary guesses the district from the score) as a LightningModule with
manual optimization: the screener's gradient loses its component along the adversary's.
"""
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

UNDISCLOSED = -1


def applications(n=960, seed=12):
    g = torch.Generator().manual_seed(seed)
    district = torch.randint(0, 3, (n,), generator=g)
    x = torch.randn(n, 8, generator=g)
    x[:, 0] += 0.8 * (district == 2)
    hired = (x[:, :4].sum(1) + 0.5 * torch.randn(n, generator=g) > 0.3).float()
    shown = district.clone()
    shown[torch.rand(n, generator=g) < 0.25] = UNDISCLOSED
    # paper forms, typed in during the last week of April, have no district field
    shown[520:566] = UNDISCLOSED
    return TensorDataset(x, hired, shown)


class Debiased(L.LightningModule):
    def __init__(self, alpha=0.3):
        super().__init__()
        self.automatic_optimization = False
        self.alpha = alpha
        self.screener = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
        self.adversary = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 3))

    def adversary_loss(self, logit, hired, district):
        known = district != UNDISCLOSED
        guess = self.adversary(torch.stack([logit, hired], dim=1))
        per_form = F.cross_entropy(guess, district.clamp(min=0), reduction="none")
        return (per_form * known).sum() / known.sum().clamp(min=1)

    def training_step(self, batch, batch_idx):
        x, hired, district = batch
        opt_screen, opt_adv = self.optimizers()
        logit = self.screener(x).squeeze(-1)
        task = F.binary_cross_entropy_with_logits(logit, hired)
        spy = self.adversary_loss(logit, hired, district)

        params = list(self.screener.parameters())
        g_task = torch.autograd.grad(task, params, retain_graph=True)
        g_spy = torch.autograd.grad(spy, params, retain_graph=True)
        opt_adv.zero_grad()
        self.manual_backward(spy)
        opt_adv.step()

        opt_screen.zero_grad()
        for p, g, h in zip(params, g_task, g_spy):
            unit = h / h.norm()
            p.grad = g - (g * unit).sum() * unit - self.alpha * h
        opt_screen.step()
        print(f"batch {batch_idx} task {task.item():.6f} adversary {spy.item():.6f}", flush=True)

    def configure_optimizers(self):
        return (torch.optim.Adam(self.screener.parameters(), lr=5e-3),
                torch.optim.SGD(self.adversary.parameters(), lr=0.1))


def main():
    L.seed_everything(2, verbose=False)
    loader = DataLoader(applications(), batch_size=20, shuffle=False)      # in order of arrival
    model = Debiased()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
