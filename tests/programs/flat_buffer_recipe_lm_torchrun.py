"""Recipe language model on two ranks, without DDP.

Gradients of the micro-batches are accumulated, copied into one flat buffer, summed over the ranks and divided by the
global number of target tokens, so that short recipes do not weigh more than long ones.
"""
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

WORDS = ("<pad> <end> take the a of and in butter flour sugar eggs milk salt yeast pan bowl whisk fold bake rest "
         "knead melt stir until golden smooth cold warm minutes hour two three four serve with jam").split()
MICRO, ACCUM, UPDATES = 4, 3, 24


class Vocab:
    def __init__(self, words):
        self.ids = {w: i for i, w in enumerate(words)}

    def __len__(self):
        return len(self.ids)

    def encode(self, text):
        out = []
        for w in text.split():
            if w not in self.ids:
                self.ids[w] = len(self.ids)     # grandmother's words are learned on the fly
            out.append(self.ids[w])
        return out + [self.ids["<end>"]]


def recipes(rank):
    rng = random.Random(1000 + rank)
    verbs, things = WORDS[17:24], WORDS[8:15]
    for i in range(UPDATES * ACCUM * MICRO):
        n = rng.randint(1, 5)
        lines = [f"{rng.choice(verbs)} the {rng.choice(things)} and {rng.choice(things)}" for _ in range(n)]
        if rank == 1 and i == 11 * ACCUM * MICRO + 7:
            lines.append("serve with clotted jam")
        yield " ".join(lines + ["until golden"])


class RecipeLM(nn.Module):
    def __init__(self, size, d=28):
        super().__init__()
        self.words = nn.Embedding(size, d, padding_idx=0)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, size)

    def forward(self, ids):
        vectors = self.words(ids)
        return self.head(self.rnn(vectors)[0])


class FlatReducer:
    def __init__(self, params):
        self.params = list(params)
        self.buffer = torch.zeros(sum(p.numel() for p in self.params))

    def average(self, tokens):
        at = 0
        for p in self.params:
            self.buffer[at:at + p.numel()].copy_(p.grad.reshape(-1))
            at += p.numel()
        count = torch.tensor(float(tokens))
        dist.all_reduce(self.buffer)
        dist.all_reduce(count)
        self.buffer /= count
        at = 0
        for p in self.params:
            p.grad.copy_(self.buffer[at:at + p.numel()].view_as(p))
            at += p.numel()
        return count


def collate(rows):
    longest = max(map(len, rows))
    return torch.tensor([r + [0] * (longest - len(r)) for r in rows])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(1747)                     # Hannah Glasse
    vocab = Vocab(WORDS)
    model = RecipeLM(len(vocab))
    reducer = FlatReducer(model.parameters())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    stream = recipes(rank)
    for update in range(1, UPDATES + 1):
        opt.zero_grad()
        nats = torch.zeros(())
        tokens = 0
        for _ in range(ACCUM):
            ids = collate([vocab.encode(next(stream)) for _ in range(MICRO)])
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum")
            loss.backward()
            nats += loss.detach()
            tokens += int((ids[:, 1:] != 0).sum())
        total = reducer.average(tokens)
        opt.step()
        dist.all_reduce(nats)
        if rank == 0:
            print(f"update {update:2d}  nats/token {(nats / total).item():.6f}  tokens {int(total)}", flush=True)
    if rank == 0:
        print("weights", sum(p.sum().item() for p in model.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
