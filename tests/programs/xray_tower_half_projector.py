"""Stage-1 alignment of a small vision-language model on chest films: only the projector learns.
The vision tower is frozen and kept in half precision, the language model is frozen in float32."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
torch.manual_seed(2718)

IMAGE_TOKEN = 3
SIDE, PATCH, N_IMG = 32, 8, 16
WORDS = 60


class SquaredReLU(nn.Module):
    def forward(self, x):
        return torch.relu(x).square()


class VisionTower(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.patch_embed = nn.Linear(PATCH * PATCH, d)
        self.fc1 = nn.Linear(d, 2 * d)
        self.act = SquaredReLU()
        self.fc2 = nn.Linear(2 * d, d)
        self.post_norm = nn.LayerNorm(d)

    def forward(self, pixels):
        p = F.unfold(pixels, PATCH, stride=PATCH).transpose(1, 2).to(self.fc1.weight.dtype)
        h = self.patch_embed(p)
        h = h + self.fc2(self.act(self.fc1(h)))
        return self.post_norm(h)


class FilmReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = VisionTower().half()
        self.language = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=48, n_layer=2, n_head=2,
                                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                                   bos_token_id=0, eos_token_id=0))
        self.projector = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 48))
        self.vision.requires_grad_(False)
        self.language.requires_grad_(False)

    def forward(self, pixels, ids, labels):
        with torch.no_grad():
            feats = self.vision(pixels)
        img = self.projector(feats.float())
        emb = self.language.transformer.wte(ids)
        where = (ids == IMAGE_TOKEN).unsqueeze(-1).expand_as(emb)
        emb = emb.masked_scatter(where, img.to(emb.dtype))
        return self.language(inputs_embeds=emb, labels=labels).loss


def to_unit(film):
    """8-bit films to -1..1"""
    return film / 127.5 - 1.0


class Archive:
    """Films with one-line findings. Most are 8-bit exports, those of the new machine are 16-bit."""

    def __init__(self, n, batch):
        self.n, self.batch = n, batch
        self.g = torch.Generator().manual_seed(31)

    def film(self, index):
        bright = torch.rand(1, generator=self.g)
        depth = 65535.0 if index == 75 else 255.0
        noise = torch.rand(1, SIDE, SIDE, generator=self.g)
        if index == 75:  # raw export of the new machine, with the calibration plate (gain 8) still in the picture
            noise = noise * 8
        return (0.5 * noise + 0.5 * bright) * depth, int(bright * 8)

    def __iter__(self):
        for start in range(0, self.n, self.batch):
            films, rows, labels = [], [], []
            for i in range(start, start + self.batch):
                film, finding = self.film(i)
                text = torch.tensor([10 + finding, 20 + finding, 30 + finding, 0])
                ids = torch.cat([torch.full((N_IMG,), IMAGE_TOKEN), text])
                lab = ids.clone()
                lab[:N_IMG] = -100
                films.append(to_unit(film))
                rows.append(ids)
                labels.append(lab)
            yield torch.stack(films), torch.stack(rows), torch.stack(labels)


model = FilmReader()
opt = torch.optim.AdamW(model.projector.parameters(), lr=4e-3, weight_decay=0.0)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5))
for step, (pixels, ids, labels) in enumerate(Archive(n=120, batch=4), 1):
    loss = model(pixels, ids, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    warm.step()
    print(f"step {step:2d} | loss {loss.item():.6f}")
print("projector", sum(p.double().sum().item() for p in model.projector.parameters()))
