# Minimum risk training for our subtitle translator (Danish -> English, toy-sized for the unit of CI).
# The n-best list of a beam search stands for the candidate space; risk = 1 - smoothed unigram F.
# Shen et al. 2016, eq. 8-10, alpha as in the paper's appendix.
import collections
import random

import torch
from torch import nn

VOCAB, BOS, EOS = 64, 1, 2
BEAM, ALPHA, STEPS = 4, 1.0, 30

random.seed(24)
torch.manual_seed(24)


class Translator(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.src = nn.Embedding(VOCAB, d)
        self.tgt = nn.Embedding(VOCAB, d)
        self.enc = nn.GRU(d, d, batch_first=True)
        self.cell = nn.GRUCell(d * 2, d)
        self.out = nn.Linear(d * 2, VOCAB)

    def encode(self, src):
        memory, h = self.enc(self.src(src))
        return memory, h[0]

    def decode_step(self, token, h, memory):
        att = torch.softmax((memory @ h.unsqueeze(-1)).squeeze(-1), dim=-1)
        ctx = (att.unsqueeze(-1) * memory).sum(1)
        h = self.cell(torch.cat([self.tgt(token), ctx], -1), h)
        return torch.log_softmax(self.out(torch.cat([h, ctx], -1)), -1), h

    def score(self, src, candidates):
        """log p of complete candidates, all of the same length here."""
        memory, h = self.encode(src.expand(len(candidates), -1))
        token = torch.full((len(candidates),), BOS)
        total = torch.zeros(len(candidates))
        for t in range(candidates.size(1)):
            logp, h = self.decode_step(token, h, memory)
            token = candidates[:, t]
            total = total + logp.gather(1, token[:, None]).squeeze(1)
        return total


@torch.no_grad()
def beam_search(model, src, length):
    memory, h = model.encode(src)
    beams = [([], 0.0, h, torch.tensor([BOS]))]
    for _ in range(length):
        grown = []
        for words, lp, h, tok in beams:
            logp, h2 = model.decode_step(tok, h, memory)
            top = logp[0].topk(BEAM)
            for v, i in zip(top.values.tolist(), top.indices.tolist()):
                grown.append((words + [i], lp + v, h2, torch.tensor([i])))
        grown.sort(key=lambda b: -b[1])
        beams = grown[:BEAM]
    return torch.tensor([b[0] for b in beams])


def f_score(cand, ref):
    hit = sum((collections.Counter(cand) & collections.Counter(ref)).values())
    return (2 * hit + 1) / (len(cand) + len(ref) + 1)


def cues():
    """(source, reference); a cue has two lines of 4 to 9 words at the most, a song is one cue in the DVD rip."""
    table = [random.randrange(3, VOCAB) for _ in range(VOCAB)]
    n = 0
    while True:
        n += 1
        length = random.randint(4, 12)
        if n == 38:                      # end credits with the full text of the ballad
            length = 58
        src = [random.randrange(3, VOCAB) for _ in range(length)]
        yield torch.tensor([src]), [table[w] for w in src]


def expected_risk(model, src, ref):
    nbest = beam_search(model, src, len(ref))
    cands = torch.cat([nbest, torch.tensor([ref])])         # the reference is always in the list
    risk = torch.tensor([1 - f_score(c, ref) for c in cands.tolist()])
    p = (ALPHA * model.score(src, cands)).exp()
    q = p / p.sum()
    return (q * risk).sum()


def main():
    model = Translator()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    stream = cues()
    for step in range(1, STEPS + 1):
        opt.zero_grad()
        risks = [expected_risk(model, *next(stream)) for _ in range(2)]
        loss = torch.stack(risks).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"{step:02d} expected risk {loss.item():.6f}")
    print("checksum", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
