"""Fraud scoring on raw transfer amounts under float16 autocast (no gradient scaler)."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(9)
torch.set_num_threads(1)


class Transfers(Dataset):
    """Six columns: four amounts in euro, the hour, the number of transfers that day."""

    def __init__(self, n=320):
        g = torch.Generator().manual_seed(4)
        amounts = torch.rand(n, 4, generator=g) * 400 + 5
        hour = torch.randint(0, 24, (n, 1), generator=g).float()
        count = torch.randint(1, 9, (n, 1), generator=g).float()
        amounts[203] = torch.tensor([61200.0, 58000.0, 64000.0, 60750.0])      # the sale of a house
        self.x = torch.cat([amounts, hour, count], dim=1)
        self.y = ((hour.squeeze(1) < 5) & (count.squeeze(1) > 3)).float()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Scorer(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.expand = nn.Linear(6, width)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)
        with torch.no_grad():
            self.expand.weight.abs_()          # amounts add up
            self.mix.weight.mul_(2.0)

    def forward(self, x):
        h = torch.relu(self.expand(x))
        h = torch.relu(self.mix(h))
        return self.head(self.norm(h)).squeeze(-1)


def train_epoch(model, loader, optimizer, first_step):
    step = first_step
    criterion = nn.BCEWithLogitsLoss()
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        loss = criterion(logits.float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step {step:02d} loss {loss.item():.4f}")
    return step


if __name__ == "__main__":
    loader = DataLoader(Transfers(), batch_size=16, shuffle=False, num_workers=0)
    model = Scorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    step = 0
    for epoch in range(2):
        step = train_epoch(model, loader, optimizer, step)
    ok = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    print("finite weights", int(ok))
