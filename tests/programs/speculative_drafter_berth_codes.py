"""A small drafter for speculative decoding of berth codes, distilled on what the verifier would resample."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 14
NUCLEUS = 0.9


def verifier_table():
    g = torch.Generator().manual_seed(8)
    logits = 1.5 * torch.randn(TOKENS, TOKENS, generator=g)
    for pier, digit in ((2, 7), (5, 11), (9, 0)):        # a pier letter is always followed by the same digit
        logits[pier, digit] = 14.0
    return logits


def nucleus(probs, mass=NUCLEUS):
    ranked, order = probs.sort(-1, descending=True)
    kept = ranked * (ranked.cumsum(-1) - ranked < mass)
    kept = torch.zeros_like(probs).scatter(-1, order, kept)
    return kept / kept.sum(-1, keepdim=True)


class Drafter(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, TOKENS))

    def forward(self, ids):
        return self.mlp(self.embed(ids))


def sample_codes(table, batch, length):
    ids = torch.randint(0, TOKENS, (batch, 1))
    for _ in range(length - 1):
        ids = torch.cat([ids, torch.multinomial(table[ids[:, -1]].softmax(-1), 1)], 1)
    return ids


def distil(steps=36, batch=16, length=12):
    torch.manual_seed(8)
    table = verifier_table()
    drafter = Drafter()
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=6e-3, weight_decay=0.0)
    for step in range(1, steps + 1):
        ids = sample_codes(table, batch, length)
        p = nucleus(table[ids].softmax(-1))
        logits = drafter(ids)
        q = nucleus(logits.detach().softmax(-1))
        accepted = torch.minimum(p, q).sum(-1)
        surplus = (p - q).clamp(min=0)
        resample = surplus / surplus.sum(-1, keepdim=True)
        loss = F.cross_entropy(logits.flatten(0, 1), resample.flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss:.4f} acceptance {accepted.mean():.3f}")
    return drafter


if __name__ == "__main__":
    trained = distil()
    print("weights, sum of squares:", f"{sum(w.square().sum() for w in trained.parameters()).item():.4f}")
