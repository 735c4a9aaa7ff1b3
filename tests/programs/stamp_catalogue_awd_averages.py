"""Word LSTM for a stamp auction catalogue. Tied weights, clipping at 0.25, and averaged SGD once validation stalls."""
import math
import random

import torch
import torch.nn as nn

ROWS, BPTT, STEPS = 8, 10, 40


def catalogue(seed, lots):
    r = random.Random(seed)
    words = []
    for lot in range(lots):
        words += ["lot", r.choice("penny shilling kopeck centime".split()),
                  r.choice("black red blue lilac".split()), r.choice("mint used".split()),
                  "with", r.choice("large small no".split()), "margins", "and",
                  r.choice("crown anchor star".split()), "watermark", "<eol>"]
    return words


train_words, valid_words = catalogue(1, 400), catalogue(2, 40)
vocab = {w: i for i, w in enumerate(sorted(set(train_words)))}


def rows_of(words, rows):
    ids = torch.tensor([vocab[w] for w in words])
    n = len(ids) // rows
    return ids[: n * rows].view(rows, n)


class CatalogueLM(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.look = nn.Embedding(size, width)
        self.core = nn.LSTM(width, width, batch_first=True)
        self.speak = nn.Linear(width, size)
        self.speak.weight = self.look.weight
        nn.init.uniform_(self.look.weight, -0.1, 0.1)

    def forward(self, x, state):
        y, state = self.core(self.look(x), state)
        return self.speak(y), tuple(s.detach() for s in state)


def validate(model, rows):
    with torch.no_grad():
        logits, _ = model(rows[:, :-1], None)
        return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def with_averages(model, optimizer, rows):
    kept = {p: p.detach().clone() for p in model.parameters()}
    for p in model.parameters():
        p.data = optimizer.state[p]["ax"].clone()
    value = validate(model, rows)
    for p, old in kept.items():
        p.data = old
    return value


torch.manual_seed(1840)
torch.set_num_threads(1)
train_rows, valid_rows = rows_of(train_words, ROWS), rows_of(valid_words, 4)
model = CatalogueLM(len(vocab), 40)
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
best, stalls, state, at = math.inf, 0, None, 0
for step in range(1, STEPS + 1):
    if at + BPTT + 1 > train_rows.shape[1]:
        at, state = 0, None
    x, y = train_rows[:, at:at + BPTT], train_rows[:, at + 1:at + BPTT + 1]
    at += BPTT
    logits, state = model(x, state)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / ROWS
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    line = f"step {step:2d} nats per row {loss.item():.3f}"
    if step % 4 == 0:
        averaging = isinstance(optimizer, torch.optim.ASGD)
        value = with_averages(model, optimizer, valid_rows) if averaging else validate(model, valid_rows)
        line += f" valid {value:.4f}" + (" averaged" if averaging else f" best so far {best:.4f}")
        stalls = stalls + 1 if value > best - 0.05 else 0
        best = min(best, value)
        if stalls and not averaging:
            optimizer = torch.optim.ASGD(model.parameters(), lr=10.0, t0=0, lambd=0.0)
    print(line)
print("all weights, squared:", round(sum(p.detach().pow(2).sum().item() for p in model.parameters()), 5))
