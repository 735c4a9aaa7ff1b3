"""Wildlife sound archive: species tagging of 1.5 s field clips.

Two tasks share one small audio transformer: species tagging (attention pooled over frames that
pass the noise gate) and a contrastive task between two crops of the same clip.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

MELS, FRAMES, SPECIES, DIM = 20, 24, 6, 32
GATE_DB = -55.0


@dataclass(frozen=True)
class Batch:
    task: str
    mel: torch.Tensor        # B x T x MELS, linear power
    species: torch.Tensor    # B
    shelf: str = "A"

    def to(self, device) -> "Batch":
        return replace(self, mel=self.mel.to(device), species=self.species.to(device))

    @property
    def log_mel(self):
        return torch.log10(self.mel.clamp_min(1e-10))

    @property
    def open_frames(self):
        """Frames louder than the noise gate."""
        db = 10 * torch.log10(self.mel.mean(-1).clamp_min(1e-10))
        return db > GATE_DB


class GatedPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, 1)

    def forward(self, h, keep):
        score = self.query(h).squeeze(-1).masked_fill(~keep, -math.inf)
        attention = torch.softmax(score, dim=1)
        return (attention.unsqueeze(-1) * h).sum(1)


class AudioTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(MELS, DIM)
        self.pos = nn.Parameter(torch.randn(FRAMES, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, 4, 64, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pool = GatedPool(DIM)
        self.head = nn.Linear(DIM, SPECIES)
        self.proj = nn.Linear(DIM, 16)

    def frames(self, log_mel):
        return self.enc(self.inp(log_mel) + self.pos[: log_mel.shape[1]])


def archive(gen, n_batches=28, size=8):
    """Tapes in shelf order; species have a band and a call rate."""
    for i in range(n_batches):
        sp = torch.randint(0, SPECIES, (size,), generator=gen)
        t = torch.arange(FRAMES).float()
        band = torch.exp(-0.5 * ((torch.arange(MELS)[None] - 3.0 * sp[:, None] - 2) / 1.5) ** 2)
        call = 0.5 + 0.5 * torch.sin(t[None] * (0.3 + 0.2 * sp[:, None]))
        mel = call[..., None] * band[:, None] + 0.02 * torch.rand(size, FRAMES, MELS, generator=gen)
        if i in (7, 14):               # the recorder's battery died on these reels
            mel[3] = 1e-9 * torch.rand(FRAMES, MELS, generator=gen)
        yield Batch("contrast" if i % 4 == 3 else "species", mel, sp, shelf="AB"[i % 2])


def contrastive(model, batch, tau=0.2):
    x = batch.log_mel
    a = F.normalize(model.proj(model.frames(x[:, :16]).mean(1)), dim=-1)
    b = F.normalize(model.proj(model.frames(x[:, 8:]).mean(1)), dim=-1)
    return F.cross_entropy(a @ b.T / tau, torch.arange(len(x)))


def main():
    torch.manual_seed(2023)
    model = AudioTagger()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for step, batch in enumerate(archive(torch.Generator().manual_seed(5)), 1):
        batch = batch.to("cpu")
        match batch:
            case Batch(task="species"):
                h = model.frames(batch.log_mel)
                loss = F.cross_entropy(model.head(model.pool(h, batch.open_frames)), batch.species)
            case Batch(task="contrast"):
                loss = contrastive(model, batch)
            case _:
                raise ValueError(batch.task)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"{step:3d} shelf {batch.shelf} {batch.task:9s} {loss.item():.6f}")
    print("weights", f"{sum(p.detach().double().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
