# Knitting charts -> written instructions.  GRU encoder, additive attention, decoder unrolled in Python.
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
STITCHES = ["k", "p", "yo", "k2tog", "ssk", "sl", "m1", "cn"]
V = 3 + len(STITCHES)
WIDTH = 12          # widest repeat that is written out in words


class Attend(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(h, h), nn.Linear(h, h), nn.Linear(h, 1)

    def forward(self, query, memory, mask):
        e = self.v(torch.tanh(self.q(query).unsqueeze(1) + self.k(memory))).squeeze(-1)
        a = e.masked_fill(~mask, float("-inf")).softmax(-1)
        return torch.bmm(a.unsqueeze(1), memory).squeeze(1)


class ChartReader(nn.Module):
    def __init__(self, h=32):
        super().__init__()
        self.emb = nn.Embedding(V, h, padding_idx=PAD)
        self.enc = nn.GRU(h, h, batch_first=True)
        self.cell = nn.GRUCell(2 * h, h)
        self.attend = Attend(h)
        self.proj = nn.Linear(2 * h, V)

    def forward(self, chart, words, n_words, force):
        mask = chart.ne(PAD)
        memory, last = self.enc(self.emb(chart))
        hidden = last.squeeze(0)
        token = torch.full((chart.size(0),), BOS)
        loss, count = 0.0, 0
        for t in range(max(n_words)):
            ctx = self.attend(hidden, memory, mask)
            hidden = self.cell(torch.cat([self.emb(token), ctx], -1), hidden)
            logits = self.proj(torch.cat([hidden, ctx], -1))
            gold = words[:, t]
            loss = loss + F.cross_entropy(logits, gold, ignore_index=PAD, reduction="sum")
            count += int(gold.ne(PAD).sum())
            token = gold if random.random() < force else logits.argmax(-1)
        return loss / count


def pad(rows, width=None):
    width = width or max(map(len, rows))
    return torch.tensor([(r + [PAD] * width)[:width] for r in rows])


def make_batch(rng, step, n=12):
    charts, words = [], []
    for _ in range(n):
        # later charts are wider, the curriculum adds one stitch every four steps
        length = rng.randint(3, min(5 + step // 4, WIDTH))
        row = [rng.randrange(3, V) for _ in range(length)]
        charts.append(row)
        words.append(row[::-1] + [EOS])          # worked from the wrong side
    n_words = [len(w) for w in words]
    return pad(charts), pad(words, min(max(n_words), WIDTH)), n_words


def main():
    random.seed(3)
    torch.manual_seed(3)
    rng = random.Random(33)
    model = ChartReader()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(1, 61):
        chart, words, n_words = make_batch(rng, step)
        loss = model(chart, words, n_words, force=max(0.5, 1 - step / 80))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"step {step} nll/token {loss.item():.5f} width {words.size(1)}", flush=True)
    print("done", sum(p.detach().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
