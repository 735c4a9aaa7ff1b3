"""BiLSTM-CRF that marks names and trades in parish ledgers. Hard BIO constraints, plus a lexicon:
words of the gazetteer allow only the tags listed there."""
import random
import torch
import torch.nn as nn

TAGS = ["O", "B-NAME", "I-NAME", "B-TRADE", "I-TRADE"]
T = {t: i for i, t in enumerate(TAGS)}
IMPOSSIBLE = float("-inf")

FIRST = "agnes tobias hester giles ursula bevis".split()
LAST = "attwood of-the-mill fletcher-son marsh de-vere".split()
TRADE = [["cooper"], ["wheel", "wright"], ["salt", "boiler"], ["tallow", "chandler"]]
FILL = "paid to for the year and his widow owes tithe of".split()
VOCAB = {w: i for i, w in enumerate(FIRST + LAST + sum(TRADE, []) + FILL)}
# second halves of trades are never anything else
GAZETTEER = {"wright": {"I-TRADE"}, "boiler": {"I-TRADE"}, "chandler": {"I-TRADE"}, "cooper": {"B-TRADE"}}


def logsumexp(x, dim):
    # own version: torch.logsumexp was slow on the old server
    top = x.max(dim, keepdim=True).values
    shifted = x - top
    return top.squeeze(dim) + shifted.exp().sum(dim).log()


def bio_mask():
    m = torch.zeros(len(TAGS), len(TAGS))
    for a in TAGS:
        for b in TAGS:
            if b.startswith("I-") and a[2:] != b[2:]:
                m[T[a], T[b]] = IMPOSSIBLE
    start = torch.tensor([IMPOSSIBLE if t.startswith("I-") else 0.0 for t in TAGS])
    return m, start


class Crf(nn.Module):
    def __init__(self):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(len(TAGS), len(TAGS)) * 0.1)
        m, s = bio_mask()
        self.register_buffer("mask", m)
        self.register_buffer("start", s)

    def log_z(self, emit):
        alpha = self.start + emit[0]
        for e in emit[1:]:
            alpha = logsumexp(alpha[:, None] + self.trans + self.mask, 0) + e
            alpha = alpha.clamp(min=-1e4)           # keep closed tags finite
        return logsumexp(alpha, 0)

    def gold(self, emit, tags):
        s = emit[0, tags[0]]
        for i in range(1, len(tags)):
            s = s + self.trans[tags[i - 1], tags[i]] + emit[i, tags[i]]
        return s


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB), 16)
        self.lstm = nn.LSTM(16, 16, bidirectional=True)
        self.proj = nn.Linear(32, len(TAGS))
        self.crf = Crf()

    def forward(self, words, tags):
        h, _ = self.lstm(self.emb(torch.tensor([VOCAB[w] for w in words])))
        emit = self.proj(h)
        closed = torch.tensor([[w in GAZETTEER and t not in GAZETTEER[w] for t in TAGS] for w in words])
        emit = emit.masked_fill(closed, IMPOSSIBLE)
        return self.crf.log_z(emit) - self.crf.gold(emit, tags)


def entry(rng):
    words, tags = [], []

    def put(ws, kind):
        for i, w in enumerate(ws):
            words.append(w)
            tags.append(T["O"] if kind is None else T[("B-" if i == 0 else "I-") + kind])

    put(rng.choices(FILL, k=rng.randint(1, 2)), None)
    put([rng.choice(FIRST), rng.choice(LAST)], "NAME")
    put(rng.choices(FILL, k=1), None)
    put(rng.choice(TRADE), "TRADE")
    put(rng.choices(FILL, k=rng.randint(0, 3)), None)
    return words, tags


rng = random.Random(1662)
torch.manual_seed(1662)
ledger = [entry(rng) for _ in range(30 * 4)]
# a line broken across the page: "... tallow / chandler of the year"
ledger[21 * 4 + 2] = (["chandler", "of", "the", "year"], [T["B-TRADE"], T["O"], T["O"], T["O"]])

model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    page = ledger[step * 4:step * 4 + 4]
    opt.zero_grad()
    shown = 0.0
    for words, tags in page:                # one entry at a time, gradients add up
        loss = model(words, tags) / len(page)
        loss.backward()
        shown += loss.item()
    opt.step()
    print(f"page {step + 1:2d}  nll {shown:.6f}")
print("theta", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")
