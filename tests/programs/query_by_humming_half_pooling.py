import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

# query by humming: hummed clips and songs are embedded in one space; frames are pooled with a matmul over the mask,
# everything under float16 autocast on CPU

torch.manual_seed(6)


@dataclass
class Cfg:
    n_mels: int = 20
    dim: int = 32
    songs: int = 64
    batch: int = 8
    steps: int = 30
    lr: float = 2e-3


cfg = Cfg()


def decibels(song, frames, g):
    """Level of every band in dB (about 20 to 90), never standardised."""
    base = 55 + 30 * torch.sin(torch.arange(cfg.n_mels) * (0.2 + 0.11 * (song % 23)) + song)
    wobble = 6 * torch.randn(frames, cfg.n_mels, generator=g)
    return base + wobble


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Linear(cfg.n_mels, cfg.dim)
        self.embed = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x, mask):
        h = F.leaky_relu(self.frame(x), 0.1)
        summed = torch.bmm(mask.unsqueeze(1), h).squeeze(1)
        pooled = summed / mask.sum(1, keepdim=True)
        return self.embed(F.layer_norm(pooled.float(), (cfg.dim,)))


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, hum, hum_mask, song, song_mask):
        a = F.normalize(self.encoder(hum, hum_mask).float(), dim=-1)
        b = F.normalize(self.encoder(song, song_mask).float(), dim=-1)
        return self.scale.exp() * a @ b.T


def pad(clips):
    x = nn.utils.rnn.pad_sequence(clips, batch_first=True)
    n = torch.tensor([len(c) for c in clips])
    return x, (torch.arange(x.shape[1]) < n[:, None]).float()


def batches():
    g = torch.Generator().manual_seed(77)
    for i in range(cfg.steps):
        ids = torch.randperm(cfg.songs, generator=g)[:cfg.batch].tolist()
        hums = [decibels(s, int(torch.randint(60, 200, (1,), generator=g)), g) for s in ids]
        songs = [decibels(s, int(torch.randint(300, 500, (1,), generator=g)), g) for s in ids]
        if i == 20:
            songs[3] = decibels(ids[3], 5200, g)           # somebody uploaded the whole album as one track
        yield pad(hums), pad(songs)


model = Retriever()
opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
start = time.time()
for i, ((hum, hm), (song, sm)) in enumerate(batches(), 1):
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        logits = model(hum, hm, song, sm)
    target = torch.arange(cfg.batch)
    loss = (F.cross_entropy(logits.float(), target) + F.cross_entropy(logits.float().T, target)) / 2
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"[{i:>3}/{cfg.steps}] loss {loss.item():.6f}")
assert time.time() - start < 60, "too slow"
print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))
