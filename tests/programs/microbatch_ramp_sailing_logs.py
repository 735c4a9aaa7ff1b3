"""Language model of ships' logs. The batch grows over the run: more and more micro-batches to an update."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
LOG = ("wind nw fresh course sse log six knots all sail set\n"
       "wind w light course se log three knots sounding forty fathoms\n"
       "calm boats out to tow no land in sight\n"
       "gale from sw two reefs pumps going every watch\n")
chars = sorted(set(LOG))
stream = torch.tensor([chars.index(c) for c in LOG * 8])


class Head(nn.Module):
    def __init__(self, d, v):
        super().__init__()
        self.a, self.n, self.b = nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.Linear(2 * d, v)

    def forward(self, h):
        return self.b(self.n(F.relu(self.a(h))))


class Logbook(nn.Module):
    def __init__(self, v, d=40):
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.rnn = nn.RNN(d, d, nonlinearity="tanh", batch_first=True)
        self.head = Head(d, v)

    def loss(self, chunk):
        x, y = chunk[:, :-1], chunk[:, 1:]
        return F.cross_entropy(self.head(self.rnn(self.e(x))[0]).transpose(1, 2), y)


def chunks(k, rows=4, width=24):
    for _ in range(k):
        at = torch.randint(len(stream) - width, (rows,))
        yield torch.stack([stream[a:a + width] for a in at.tolist()])


def micro(update):
    return 1 if update < 16 else min(32, 2 ** ((update - 12) // 4))


def lr(update, peak=0.25, warm=8):
    return peak * min(1.0, (update + 1) / warm)


book = Logbook(len(chars))
sgd = torch.optim.SGD(book.parameters(), lr=0.1, momentum=0.9)
for u in range(41):
    for group in sgd.param_groups:
        group["lr"] = lr(u)
    seen = []
    for c in chunks(micro(u)):
        l = book.loss(c)
        l.backward()
        seen.append(l.item())
    sgd.step()
    sgd.zero_grad()
    print(f"update {u + 1} micro {len(seen)} loss {sum(seen) / len(seen):.4f}", flush=True)
print("final", sum(float(p.detach().square().sum()) for p in book.parameters()) ** 0.5)
