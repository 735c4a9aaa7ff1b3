"""Limit order book, one side up or down: an LSTM whose cell leaks with the time between two book events."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class BookEvents(Dataset):
    """Windows of 12 events: imbalance on four levels, spread, and the seconds since the event before."""

    def __init__(self, windows=296, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.state = torch.randn(windows, 12, 5, generator=g)
        self.gap = torch.empty(windows, 12).exponential_(0.8, generator=g)
        self.gap[:, 0] = 0.0
        afternoon = torch.arange(windows) >= 100
        self.gap[afternoon, 7] = 5400.0
        weight = torch.exp(-0.3 * torch.arange(11, -1, -1.0))
        drift = (self.state[..., 0] * weight).sum(1) - 0.5 * self.state[:, -1, 4]
        self.up = (drift + 0.3 * torch.randn(windows, generator=g) > 0).float()

    def __len__(self):
        return len(self.up)

    def __getitem__(self, i):
        return self.state[i], self.gap[i], self.up[i]


class LeakyCell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)
        self.leak = nn.Parameter(torch.full((hidden,), 0.02))

    def forward(self, x, gap, h, c):
        c = c * torch.exp(-self.leak * gap[:, None])
        i, f, o, u = self.gates(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c


class BookModel(L.LightningModule):
    def __init__(self, hidden=14):
        super().__init__()
        self.hidden = hidden
        self.cell = LeakyCell(5, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, state, gap):
        h = c = state.new_zeros(len(state), self.hidden)
        for k in range(state.shape[1]):
            h, c = self.cell(state[:, k], gap[:, k], h, c)
        return self.head(h).squeeze(1)

    def training_step(self, batch, batch_idx):
        state, gap, up = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self(state, gap), up)
        print(f"batch {batch_idx + 1:2d}: bce {loss.item():.5f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


if __name__ == "__main__":
    L.seed_everything(11, verbose=False)
    model = BookModel()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(BookEvents(), batch_size=8))
    print("squared length of the weights:", f"{sum((p ** 2).sum().item() for p in model.parameters()):.5f}")
