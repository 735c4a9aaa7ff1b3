"""Train the draft model for speculative decoding against cached top-k probabilities of the big model.

The big model is run once, its K best probabilities a position go into a cache (npz, float16: the cache of the
real run is 400 GB).  The draft is trained with KL(target || draft) over those K and the remaining mass.
"""
import os
import tempfile
import numpy as np
import torch
from torch import nn

K, VOCAB, SEQ, BATCH, STEPS = 6, 96, 12, 8, 34


def big_model_logits(rng, domain, ids):
    """A stand-in for the 70B: a bigram table, sharper for some domains."""
    table = np.random.default_rng(12).normal(size=(VOCAB, VOCAB)) * 1.5
    sharp = {"chat": 1.0, "code": 1.6, "licence": 16.0}[domain]
    return table[ids] * sharp + rng.normal(size=ids.shape + (VOCAB,)) * 0.05


def write_cache(path):
    rng = np.random.default_rng(3)
    shards = {}
    for s in range(STEPS):
        # shard 22 is the header of a licence, repeated; the big model knows it by heart
        domain = "licence" if s == 22 else ("code" if s % 3 == 0 else "chat")
        ids = rng.integers(0, VOCAB, size=(BATCH, SEQ))
        z = big_model_logits(rng, domain, ids)
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        top = np.argsort(-p, axis=-1)[..., :K]
        shards[f"ids{s}"] = ids
        shards[f"top{s}"] = top.astype(np.int16)
        shards[f"prob{s}"] = np.take_along_axis(p, top, -1).astype(np.float16)
    np.savez(path, **shards)


def read_cache(path):
    with np.load(path) as z:
        for s in range(STEPS):
            yield (torch.from_numpy(z[f"ids{s}"]), torch.from_numpy(z[f"top{s}"].astype(np.int64)),
                   torch.from_numpy(z[f"prob{s}"]).float())


class Draft(nn.Module):
    """Two residual heads on a shared embedding, as in Medusa; only the first one is trained here."""

    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.res = nn.Linear(width, width)
        self.act = nn.SiLU()
        self.unembed = nn.Linear(width, VOCAB)

    def forward(self, ids):
        h = self.embed(ids)
        return self.unembed(h + self.act(self.res(h)))


def topk_kl(logits, top, p):
    logq = logits.log_softmax(-1).gather(-1, top)
    p = p / p.sum(-1, keepdim=True)
    logq = logq - logq.logsumexp(-1, keepdim=True)
    logp = p.log()
    per = (p * (logp - logq)).sum(-1)
    hard = (per / per.mean()).clamp(max=3.0).detach()  # lean on the positions where the draft is off
    return (hard * per).mean()


def acceptance(logits, top, p):
    with torch.no_grad():
        q = logits.softmax(-1).gather(-1, top)
        return torch.minimum(p, q).sum(-1).mean().item()


def main():
    torch.manual_seed(0)
    draft = Draft()
    opt = torch.optim.RMSprop(draft.parameters(), lr=3e-3, alpha=0.95)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "topk.npz")
        write_cache(path)
        for step, (ids, top, p) in enumerate(read_cache(path), start=1):
            logits = draft(ids)
            kl = topk_kl(logits, top, p)
            loss = kl + 1e-4 * logits.logsumexp(-1).square().mean()  # z-loss keeps the normaliser tame
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            print("step %d kl %.6f loss %.6f accept %.4f" % (step, kl.item(), loss.item(), acceptance(logits, top, p)))
    print("checksum %.6f" % sum(w.double().sum().item() for w in draft.parameters()))


if __name__ == "__main__":
    main()
