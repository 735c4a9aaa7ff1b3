"""Seq2seq with scheduled sampling: flag positions of a semaphore tower -> letters of the message.

Teacher forcing fades by the inverse sigmoid of Bengio et al. (2015), k / (k + exp(i / k)), where i counts what was
seen. Label smoothing 0.1, padded messages, Adam.
"""
import math
import sys
from types import SimpleNamespace as NS

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

PAD, BOS, EOS = 0, 1, 2
hp = NS(letters=20, width=48, batch=16, steps=45, lr=8e-3, smoothing=0.1, k=6.0, clip=1.0, seed=1794)


def messages(n, g):
    """a letter is sent as two flag positions; the receiver reads one of them wrongly now and then"""
    src, tgt = [], []
    for _ in range(n):
        m = int(torch.randint(3, 9, (1,), generator=g))
        letters = torch.randint(0, hp.letters, (m,), generator=g)
        flags = torch.stack([letters // 5 + 1, letters % 5 + 5], 1).flatten()
        wrong = torch.rand(len(flags), generator=g) < 0.02
        src.append(torch.where(wrong, torch.randint(1, 10, flags.shape, generator=g), flags))
        tgt.append(torch.cat([letters + 3, torch.tensor([EOS])]))
    return pad_sequence(src, batch_first=True), pad_sequence(tgt, batch_first=True)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, hp.width, padding_idx=PAD)
        self.gru = nn.GRU(hp.width, hp.width // 2, batch_first=True, bidirectional=True)

    def forward(self, src):
        return self.gru(self.embed(src))[0]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(hp.letters + 3, hp.width)
        self.cell = nn.GRUCell(2 * hp.width, hp.width)
        self.query = nn.Linear(hp.width, hp.width)
        self.out = nn.Linear(2 * hp.width, hp.letters + 3)

    def forward(self, token, state, memory, blind):
        e = torch.einsum("bw,btw->bt", self.query(state), memory).masked_fill(blind, float("-inf"))
        ctx = torch.einsum("bt,btw->bw", e.softmax(1), memory)
        state = self.cell(torch.cat([self.embed(token), ctx], 1), state)
        return self.out(torch.cat([state, ctx], 1)), state


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, src, tgt, force, g):
        memory = self.encoder(src)
        state = memory.new_zeros(len(src), hp.width)
        token = torch.full((len(src),), BOS)
        out = []
        for t in range(tgt.shape[1]):
            logits, state = self.decoder(token, state, memory, src == PAD)
            out.append(logits)
            given = torch.rand(len(src), generator=g) < force
            token = torch.where(given, tgt[:, t], logits.detach().argmax(1))
        return torch.stack(out, 1)


class InverseSigmoid:
    def __init__(self, k):
        self.k, self.seen = k, 0

    def advance(self, tokens):
        self.seen += tokens

    def __call__(self):
        return self.k / (self.k + math.exp(self.seen / self.k))


def main():
    torch.manual_seed(hp.seed)
    g = torch.Generator().manual_seed(hp.seed)
    tower, forcing = Tower(), InverseSigmoid(hp.k)
    opt = torch.optim.Adam(tower.parameters(), lr=hp.lr)
    for step in range(1, hp.steps + 1):
        src, tgt = messages(hp.batch, g)
        force = forcing()
        logits = tower(src, tgt, force, g)
        loss = F.cross_entropy(logits.transpose(1, 2), tgt, ignore_index=PAD, label_smoothing=hp.smoothing)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), hp.clip)
        opt.step()
        forcing.advance(tgt.numel())
        right = (logits.argmax(2) == tgt)[tgt != PAD].float().mean()
        print(f"{step:3d} loss {loss.item():.6f} right {right:.4f} forced {force:.3e} seen {forcing.seen}", flush=True)
    print(f"weights {sum(p.detach().abs().sum() for p in tower.parameters()).item():.6f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
