"""Toy LLaVA stage 1: frozen vision tower in half precision -> trainable projector -> frozen tiny decoder.
Plates are normalised by the scanner software; the archive mixes two scanners."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1839)
PATCHES, PDIM, VDIM, TDIM, VOCAB = 9, 48, 64, 32, 50


class VisionTower(nn.Module):
    """stands for a CLIP tower that was exported in float16"""

    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(PDIM, VDIM)
        self.gate = nn.Linear(VDIM, VDIM, bias=False)
        self.post = nn.LayerNorm(VDIM)
        self.half().requires_grad_(False)

    def forward(self, px):
        h = self.patch(px.half())
        energy = h * h                      # divisive normalisation, an old idea of the vision group
        h = h + self.gate(h)
        h = h * energy
        return self.post(h)


class Projector(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(VDIM, 64), nn.GELU(), nn.Linear(64, TDIM))


class CaptionHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, TDIM)
        self.rnn = nn.GRU(TDIM, TDIM, batch_first=True)
        self.lm = nn.Linear(TDIM, VOCAB)
        self.requires_grad_(False)

    def forward(self, visual, ids):
        h, _ = self.rnn(torch.cat([visual, self.tok(ids)], 1))
        return self.lm(h[:, visual.shape[1]:])


class PlateArchive:
    def __init__(self, n=72):
        g = torch.Generator().manual_seed(4)
        self.raw = torch.randint(0, 256, (n, PATCHES, PDIM), generator=g).float()
        self.caps = torch.randint(1, VOCAB, (n, 6), generator=g)
        self.scanner = ["A"] * n
        self.scanner[43] = "B"              # scanner B delivers counts, 0..255, and A floats about zero

    def load(self, i):
        px = self.raw[i]
        if self.scanner[i] == "A":
            px = (px - 127.5) / 74.0
        return px, self.caps[i]

    def epoch(self, bs):
        order = list(range(len(self.raw)))
        for i in range(0, len(order), bs):
            px, cap = zip(*(self.load(j) for j in order[i:i + bs]))
            yield torch.stack(px), torch.stack(cap)


def main():
    tower, projector, head = VisionTower().eval(), Projector(), CaptionHead()
    opt = torch.optim.AdamW(projector.parameters(), lr=4e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5))
    step = 0
    for ep in range(1):
        for px, cap in PlateArchive().epoch(3):
            step += 1
            with torch.no_grad():
                feats = tower(px).float()
            logits = head(projector(feats), cap[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), cap[:, 1:].reshape(-1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            warm.step()
            print(f"stage1 {step:02d} caption_ce={loss.item():.5f} lr={opt.param_groups[0]['lr']:.4f}")
    print("projector", sum(p.sum().item() for p in projector.parameters()))


if __name__ == "__main__":
    main()
