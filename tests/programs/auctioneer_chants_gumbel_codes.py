"""Self-supervised speech in the small: masked frames of auctioneers' chants have to be told apart from distractors, the
targets are quantised with a product quantiser and straight-through Gumbel samples (as in wav2vec 2.0)."""
import torch
import torch.nn.functional as F
from torch import nn


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, soft):
        return F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Quantizer(nn.Module):
    def __init__(self, width, groups=2, codes=10):
        super().__init__()
        self.groups, self.codes = groups, codes
        self.logits = nn.Linear(width, groups * codes)
        self.book = nn.Parameter(torch.rand(groups, codes, width // groups) * 2 - 1)
        self.tau = 2.0

    def forward(self, z, generator):
        b, t, _ = z.shape
        logits = self.logits(z).view(b * t, self.groups, self.codes)
        u = torch.rand(logits.shape, generator=generator).clamp(1e-6, 1 - 1e-6)
        soft = ((logits - (-u.log()).log()) / self.tau).softmax(-1)
        hard = StraightThrough.apply(soft)
        quantised = torch.einsum("ngc,gcd->ngd", hard, self.book).reshape(b, t, -1)
        use = hard.mean(0)
        perplexity = torch.exp(-(use * use.log()).sum(-1))
        return quantised, perplexity


class Chant(nn.Module):
    def __init__(self, bands=12, width=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(bands, width, 3, padding=1), nn.GELU(),
                                     nn.Conv1d(width, width, 3, stride=2, padding=1), nn.GELU())
        self.norm = nn.LayerNorm(width)
        self.mask_vector = nn.Parameter(torch.rand(width))
        self.context = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.project = nn.Linear(2 * width, width)
        self.quantizer = Quantizer(width)

    def forward(self, spectra, mask, generator):
        z = self.norm(self.encoder(spectra).transpose(1, 2))
        q, perplexity = self.quantizer(z, generator)
        c, _ = self.context(torch.where(mask[..., None], self.mask_vector, z))
        return self.project(c), q, perplexity


def contrast(c, q, mask, generator, distractors=6, temperature=0.1):
    c, q = c[mask], q[mask]
    n = len(c)
    other = torch.randint(0, n, (n, distractors), generator=generator)
    candidates = torch.cat([q[:, None], q[other]], 1)
    similarity = F.cosine_similarity(c[:, None], candidates, dim=-1) / temperature
    same = (q[:, None] == q[other]).all(-1)
    similarity = torch.cat([similarity[:, :1], similarity[:, 1:].masked_fill(same, float("-inf"))], 1)
    return F.cross_entropy(similarity, torch.zeros(n, dtype=torch.long))


def chants(n, generator, bands=12, frames=48):
    syllables = torch.randn(9, bands, generator=torch.Generator().manual_seed(99)) * 2
    beat = torch.randint(0, 9, (n, frames // 4), generator=generator).repeat_interleave(4, 1)
    loud = 0.5 + torch.rand(n, 1, 1, generator=generator)
    return (syllables[beat] * loud + 0.4 * torch.randn(n, frames, bands, generator=generator)).transpose(1, 2)


def main(steps=50, diversity=0.01):
    torch.manual_seed(14)
    generator = torch.Generator().manual_seed(15)
    model = Chant()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for step in range(1, steps + 1):
        spectra = chants(8, generator)
        mask = torch.rand(8, 24, generator=generator) < 0.4
        c, q, perplexity = model(spectra, mask, generator)
        nce = contrast(c, q, mask, generator)
        loss = nce + diversity * (1 - perplexity / model.quantizer.codes).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.quantizer.tau = max(model.quantizer.tau * 0.96, 0.3)
        print(f"step {step} loss {loss.item():.6f} nce {nce.item():.6f} "
              f"codes {' '.join(f'{v:.3f}' for v in perplexity.tolist())}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
