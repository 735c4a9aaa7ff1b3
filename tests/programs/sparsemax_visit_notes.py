"""Readmission risk from the notes of a hospital stay: sparsemax attention over a variable number of notes."""
import torch
import torch.nn as nn
from torch.autograd import Function
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class SparsemaxFunction(Function):
    """Martins & Astudillo (2016), with padded entries left out of the simplex."""

    @staticmethod
    def forward(ctx, scores, mask):
        z = torch.where(mask, scores, torch.full_like(scores, -1e4))
        z = z - z.amax(-1, keepdim=True)
        ordered, _ = z.sort(-1, descending=True)
        k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
        cumulative = ordered.cumsum(-1) - 1
        support = (k * ordered > cumulative).sum(-1, keepdim=True).clamp(min=1)
        tau = cumulative.gather(-1, support - 1) / support
        p = (z - tau).clamp(min=0) * mask
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, grad):
        (p,) = ctx.saved_tensors
        support = (p > 0).to(grad.dtype)
        centre = (grad * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return support * (grad - centre), None


class NoteAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, notes, mask):
        weights = SparsemaxFunction.apply(self.score(notes).squeeze(-1), mask)
        return (weights[..., None] * notes).sum(1), weights


class ReadmissionModel(nn.Module):
    def __init__(self, note_dim=12, tabular_dim=5, dim=20):
        super().__init__()
        self.note_encoder = nn.Sequential(nn.Linear(note_dim, dim), nn.GELU())
        self.attention = NoteAttention(dim)
        self.classifier = nn.Sequential(nn.Linear(dim + tabular_dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, notes, mask, tabular):
        pooled, weights = self.attention(self.note_encoder(notes), mask)
        return self.classifier(torch.cat([pooled, tabular], -1)).squeeze(-1), weights


class Stays(Dataset):
    def __init__(self, n=320, seed=6):
        g = torch.Generator().manual_seed(seed)
        self.stays = []
        for i in range(n):
            count = int(torch.randint(1, 7, (1,), generator=g))
            if i in (58, 249):
                count = 0            # transferred within the hour, nobody wrote a note
            notes = torch.randn(count, 12, generator=g)
            tabular = torch.randn(5, generator=g)
            signal = notes[:, 0].sum() + tabular[1]
            self.stays.append((notes, tabular, (signal > 0).float()))

    def __len__(self):
        return len(self.stays)

    def __getitem__(self, i):
        return self.stays[i]


def collate(rows):
    notes, tabular, label = zip(*rows)
    lengths = torch.tensor([len(n) for n in notes])
    padded = pad_sequence(notes, batch_first=True)
    mask = torch.arange(padded.shape[1])[None] < lengths[:, None]
    return padded, mask, torch.stack(tabular), torch.stack(label)


def train():
    torch.manual_seed(13)
    loader = DataLoader(Stays(), 20, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(13))
    model = ReadmissionModel()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(3):
        for notes, mask, tabular, label in loader:
            step += 1
            logit, weights = model(notes, mask, tabular)
            loss = criterion(logit, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step} bce {loss.item():.5f} selected {(weights > 0).sum().item()}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    train()
