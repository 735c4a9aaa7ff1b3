"""Fine-tune a moth name encoder: the name table is shipped in half precision, the rest is float32.

Stage 1 trains mixer and head. Stage 2 (from update 15) adds the table to the same Adam.
"""
import io

import torch
import torch.nn as nn
import torch.nn.functional as F

PIECES, WIDTH, FAMILIES = 120, 32, 7


def shipped_table():
    """What the release file looks like: float16 to keep the app small."""
    buf = io.BytesIO()
    torch.save({"table": (torch.randn(PIECES, WIDTH) * 0.4).half()}, buf)
    buf.seek(0)
    return torch.load(buf, weights_only=True)["table"]


class NameEncoder(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table, requires_grad=False)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.LayerNorm(48))
        self.head = nn.Linear(48, FAMILIES)

    def forward(self, pieces):
        e = F.embedding(pieces, self.table).float()
        return self.head(self.mix(e.mean(1)))


class Stages:
    def __init__(self, model, thaw=15):
        self.model, self.thaw = model, thaw
        self.adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=4e-3)

    def enter(self, update):
        if update == self.thaw:
            self.model.table.requires_grad_(True)
            self.adam.add_param_group({"params": [self.model.table], "lr": 1e-3})

    def apply(self, loss):
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()


def trap_nights(n):
    family_of_piece = torch.randint(FAMILIES, (PIECES,))
    for _ in range(n):
        y = torch.randint(FAMILIES, (12,))
        pieces = torch.randint(PIECES, (12, 5))
        for row, fam in zip(pieces, y):
            own = (family_of_piece == fam).nonzero().squeeze(-1)
            row[:3] = own[torch.randint(len(own), (3,))]
        yield pieces, y


def main():
    torch.manual_seed(451)
    model = NameEncoder(shipped_table())
    stages = Stages(model)
    smoothed = None
    for update, (pieces, y) in enumerate(trap_nights(45), 1):
        stages.enter(update)
        loss = F.cross_entropy(model(pieces), y)
        stages.apply(loss)
        smoothed = loss.item() if smoothed is None else 0.8 * smoothed + 0.2 * loss.item()
        print(f"night {update:02d} loss {loss.item():.6f} smoothed {smoothed:.6f}")
    print("all weights", sum(p.detach().double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
