"""Translate a fishermen's pidgin, sentences grow by a curriculum, an averaged copy is scored with beam search.

The loss is the SUM over the words of a batch, as in the old scripts of the group, so it grows with the sentences.
"""
import copy
import math
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
V = 23
D = 32


class Pidgin:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.table = torch.randperm(V - 3, generator=self.gen) + 3

    def batch(self, n, longest):
        src = torch.full((n, longest), PAD)
        tgt = torch.full((n, longest + 1), PAD)
        for i in range(n):
            k = int(torch.randint(1, longest + 1, (1,), generator=self.gen))
            words = torch.randint(3, V, (k,), generator=self.gen)
            src[i, :k] = words
            out = self.table[words - 3]
            if k > 2:
                out = torch.cat([out[1:], out[:1]])          # the verb goes last
            tgt[i, :k] = out
            tgt[i, k] = EOS
        return src, tgt


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.src = nn.Embedding(V, D, padding_idx=PAD)
        self.tgt = nn.Embedding(V, D, padding_idx=PAD)
        self.pos = nn.Embedding(16, D)
        self.dec = nn.GRU(D, D, batch_first=True)
        self.query, self.key = nn.Linear(D, D), nn.Linear(D, D)
        self.out = nn.Linear(2 * D, V)

    def encode(self, src):
        return self.src(src) + self.pos.weight[:src.shape[1]]

    def decode(self, memory, pad, words):
        h, _ = self.dec(self.tgt(words) + self.pos.weight[:words.shape[1]])
        att = self.query(h) @ self.key(memory).transpose(1, 2) / math.sqrt(D)
        att = att.masked_fill(pad[:, None], float("-inf")).softmax(dim=-1)
        return self.out(torch.cat([h, att @ memory], dim=-1))

    def forward(self, src, tgt):
        words = torch.cat([torch.full_like(tgt[:, :1], BOS), tgt[:, :-1]], dim=1)
        return self.decode(self.encode(src), src == PAD, words)


@torch.no_grad()
def beam(model, src, width=3, limit=9):
    memory, pad = model.encode(src[None]), (src == PAD)[None]
    seqs = torch.full((width, 1), BOS)
    scores = torch.full((width,), float("-inf"))
    scores[0] = 0.0                                           # the other beams do not exist yet
    for _ in range(limit):
        lp = model.decode(memory.expand(width, -1, -1), pad.expand(width, -1), seqs)[:, -1].log_softmax(-1)
        lp[:, [PAD, BOS]] = float("-inf")
        ended = (seqs == EOS).any(dim=1)
        lp[ended] = float("-inf")
        lp[ended, EOS] = 0.0
        scores, flat = (scores[:, None] + lp).flatten().topk(width)
        seqs = torch.cat([seqs[flat // V], (flat % V)[:, None]], dim=1)
    best = seqs[scores.argmax()].tolist()[1:]
    return best[:best.index(EOS)] if EOS in best else best


def corpus_bleu2(pairs):
    logs = []
    for n in (1, 2):
        hit = total = 0
        for hyp, ref in pairs:
            a = Counter(zip(*[hyp[i:] for i in range(n)]))
            b = Counter(zip(*[ref[i:] for i in range(n)]))
            hit, total = hit + sum((a & b).values()), total + sum(a.values())
        logs.append(torch.log(torch.tensor(float(hit)) / total))      # -inf or nan at first, and printed so
    return torch.stack(logs).mean().item()


def main():
    torch.manual_seed(88)
    lang = Pidgin(seed=5)
    model = Translator()
    ema = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 8))
    dev_src, dev_tgt = Pidgin(seed=5).batch(6, 4)
    for step in range(1, 51):
        longest = 1 + (step - 1) // 7
        src, tgt = lang.batch(24, longest)
        logits = model(src, tgt)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=PAD, reduction="sum")
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        warm.step()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 0.15)
        line = f"step {step} longest {longest} summed loss {loss.item():.5f}"
        if step % 10 == 1:
            pairs = [(beam(ema, s), [w for w in t.tolist() if w > EOS]) for s, t in zip(dev_src, dev_tgt)]
            line += f" log-bleu {corpus_bleu2(pairs):.5f}"
        print(line, flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
