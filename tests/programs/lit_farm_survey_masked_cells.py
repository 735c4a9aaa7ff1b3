"""Masked autoencoder for the rows of a farm survey. Unanswered questions are NaN in the table and stay NaN in the
batch; a share of the answered cells is hidden and must be restored. Pages that came back blank are passed over."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
    logging.getLogger(name).setLevel(logging.ERROR)

QUESTIONS, BATCH, STEPS = 18, 24, 40


def survey(n, seed):
    g = torch.Generator().manual_seed(seed)
    farm = torch.randn(n, 4, generator=g)
    table = torch.tanh(farm @ torch.randn(4, QUESTIONS, generator=g)) + 0.1 * torch.randn(n, QUESTIONS, generator=g)
    refuse = torch.rand(n, QUESTIONS, generator=g) < torch.linspace(0.05, 0.7, QUESTIONS)
    table[refuse] = float("nan")
    table[:, 16] = float("nan")                     # asked only of vineyards, and there is none in this province
    for page in (7, 19, 20, 33):                    # lost in the post
        table[page * BATCH:(page + 1) * BATCH] = float("nan")
    return table


class Cells(nn.Module):
    """A row becomes a set of tokens, one for each question; hidden and unanswered ones are shut out as keys."""

    def __init__(self, width=32):
        super().__init__()
        self.question = nn.Parameter(0.3 * torch.randn(QUESTIONS, width))
        self.value = nn.Linear(1, width)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.restore = nn.Linear(width, 1)

    def forward(self, x, visible):
        filled = torch.where(visible, x, 0.0)
        token = self.question + self.value(filled[..., None]) * visible[..., None]
        token = torch.cat([self.summary.expand(len(x), 1, -1), token], 1)
        key_off = torch.cat([torch.zeros(len(x), 1, dtype=torch.bool), ~visible], 1)
        bias = torch.zeros(key_off.shape).masked_fill(key_off, float("-inf"))
        h = token + self.attend(token, token, token, key_padding_mask=bias, need_weights=False)[0]
        h = h + self.feed(h)
        return self.restore(h[:, 1:])[..., 0]


class SurveyMAE(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Cells()
        self.dice = torch.Generator().manual_seed(21)

    def training_step(self, batch, index):
        x, = batch
        known = ~x.isnan()
        hide = known & (torch.rand(x.shape, generator=self.dice) < 0.3)
        if not hide.any():
            print(f"batch {index + 1}: page is blank, mean of answers {x[known].mean().item()}", flush=True)
            return None
        guess = self.net(x, known & ~hide)
        error = guess - x                           # NaN where nobody answered
        by_question = torch.where(hide, error.abs(), torch.nan).nanmean(0).detach()
        loss = error[hide].square().mean()
        print(f"batch {index + 1}: loss {loss.item():.6f} question17 {by_question[16].item():.4f} "
              f"question1 {by_question[0].item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    L.seed_everything(12, verbose=False)
    data = TensorDataset(survey(BATCH * STEPS, 5))
    model = SurveyMAE()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(model, DataLoader(data, batch_size=BATCH, shuffle=False))
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
