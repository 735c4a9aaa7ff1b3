"""Fine-tune the deed parser (bearing and distance from a boundary clause) with accelerate."""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUM, EPOCHS, BATCH, ROWS = 4, 12, 8, 120
set_seed(4326)


def clauses(n):
    """'thence north 41 degrees east, 22 chains' as digits; target: east and north offset in hundreds of metres"""
    quadrant = torch.randint(0, 4, (n,))
    degrees = torch.randint(0, 90, (n,))
    chains = torch.randint(1, 60, (n,))
    tokens = torch.stack([quadrant, 4 + degrees // 10, 4 + degrees % 10, 4 + chains // 10, 4 + chains % 10], 1)
    angle = torch.deg2rad(degrees.float())
    length = chains.float() * 0.201168
    east = length * angle.sin() * torch.where(quadrant % 2 == 0, 1.0, -1.0)
    north = length * angle.cos() * torch.where(quadrant < 2, 1.0, -1.0)
    return TensorDataset(tokens, torch.stack([east, north], 1))


class DeedParser(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.table = nn.Embedding(14, dim)
        self.place = nn.Parameter(torch.randn(5, dim) * 0.1)
        self.mix = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(5 * dim, 48), nn.Tanh(), nn.Linear(48, 2))

    def forward(self, tokens):
        return self.head(self.mix(self.table(tokens) + self.place))


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUM)
    loader = DataLoader(clauses(ROWS), batch_size=BATCH, shuffle=True)
    model = DeedParser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)

    # 15 batches an epoch, 4 to a step
    total = len(loader) // ACCUM * EPOCHS

    def root_decay(done):
        left = torch.tensor(1.0 - done / total)
        return left.pow(0.5).item()

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, root_decay)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    done = 0
    running = 0.0
    for epoch in range(EPOCHS):
        for tokens, offset in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.smooth_l1_loss(model(tokens), offset)
                accelerator.backward(loss)
                running += loss.item() / ACCUM
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                done += 1
                accelerator.print(f"traverse {done:2d} epoch {epoch} misclosure {running:.6f}")
                running = 0.0
    accelerator.print("marks", sum(p.detach().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
