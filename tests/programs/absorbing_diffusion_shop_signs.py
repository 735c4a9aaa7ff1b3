"""Masked (absorbing) text diffusion over short shop signs, continuous time, with an averaged copy."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SIGNS = ["fresh bread", "shoe repair", "books & tea", "open sunday", "fish market", "key cutting", "hat maker",
         "old clocks", "cheese shop", "wine cellar"]
CHARS = sorted(set("".join(SIGNS)) | {" "})
MASK = len(CHARS)
LENGTH = 12


def ids(text):
    return [CHARS.index(c) for c in text.ljust(LENGTH)]


class Denoiser(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.chars = nn.Embedding(MASK + 1, dim)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        self.mix = nn.TransformerEncoderLayer(dim, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(dim, MASK + 1)

    def forward(self, z):
        logits = self.out(self.mix(self.chars(z) + self.places))
        logits[..., MASK] = -torch.inf
        logp = logits.log_softmax(-1)
        settled = torch.full_like(logp, -torch.inf).scatter(-1, z[..., None], 0.0)
        return torch.where((z == MASK)[..., None], logp, settled)


def corrupt(x, gen):
    t = torch.rand(x.shape[0], 1, generator=gen).clamp(min=0.02)
    hidden = torch.rand(x.shape, generator=gen) < t
    return x.masked_fill(hidden, MASK), t


def loss_of(model, x, gen):
    z, t = corrupt(x, gen)
    picked = model(z).gather(-1, x[..., None]).squeeze(-1)
    return -(picked / t).sum(1).mean() / LENGTH


@torch.no_grad()
def sample(model, gen, rounds=6):
    z = torch.full((1, LENGTH), MASK)
    for k in range(rounds, 0, -1):
        p = model(z).exp()
        draw = torch.multinomial(p[0], 1, generator=gen).T
        keep = torch.rand(z.shape, generator=gen) < 1 / k
        z = torch.where((z == MASK) & keep, draw, z)
    return "".join(CHARS[i] for i in z[0].tolist())


def main():
    set_seed(29)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=2)
    gen = torch.Generator().manual_seed(30)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3)
    shadow = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model, opt = acc.prepare(model, opt)
    table = torch.tensor([ids(s) for s in SIGNS])
    for micro in range(1, 61):
        x = table[torch.randint(len(SIGNS), (4,), generator=gen)]
        with acc.accumulate(model):
            loss = loss_of(model, x, gen)
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
        if acc.sync_gradients:
            shadow.update_parameters(model)
        print(f"micro {micro:02d} bound {loss.item():.4f}{' *' if acc.sync_gradients else ''}")
    print("sample:", repr(sample(shadow.module, gen)))
    print(f"weights squared {sum(p.detach().pow(2).sum().item() for p in model.parameters()):.4f}")


main()
