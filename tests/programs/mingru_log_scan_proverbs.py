"""A character model of minGRU layers, scanned in log space as in 'Were RNNs all we needed?'."""
import torch
from torch import nn
from torch.nn import functional as F

PROVERBS = """a stitch in time saves nine|the early bird catches it|look well before you leap
better late than never so|every cloud has a lining|practice makes us perfect
all that glitters is hm|actions outdo the words|two wrongs make no right
still waters run deep ok|haste makes waste|honesty is the best way
when in rome do as they|birds of a feather flock|fortune favours the bold
you reap what you do sow|no pain no gain|the pen beats the sword
a watched pot won't boil|curiosity killed a cat|rome took many days too""".split("\n")
ALPHABET = " '" + "abcdefghijklmnopqrstuvwxyz"
LENGTH = 22


def encode(text):
    text = text[:LENGTH]
    ids = [ALPHABET.index(c) for c in text]
    gap = LENGTH - len(ids)
    return [0] * gap + ids, [0.0] * gap + [1.0] * len(ids)          # padded on the left


def log_g(x):
    return torch.where(x >= 0, (F.relu(x) + 0.5).log(), -F.softplus(-x))


def scan(log_keep, log_new):
    """h[t] = keep[t] * h[t-1] + new[t], all in logarithms."""
    a_star = log_keep.cumsum(dim=1)
    return (a_star + torch.logcumsumexp(log_new - a_star, dim=1)).exp()


class MinGRU(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        self.candidate = nn.Linear(dim, dim)

    def forward(self, x, log_mask):
        k = self.gate(x)
        log_new = -F.softplus(-k) + log_g(self.candidate(x)) + log_mask
        return scan(-F.softplus(k), log_new)


class ProverbModel(nn.Module):
    def __init__(self, dim=20):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), dim)
        self.layers = nn.ModuleList(MinGRU(dim) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.unembed = nn.Linear(dim, len(ALPHABET))

    def forward(self, ids, mask):
        x = self.embed(ids)
        log_mask = mask.log().unsqueeze(-1)
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x), log_mask)
        return self.unembed(x)


torch.manual_seed(0)
model = ProverbModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
step = 0
for epoch in range(2):
    for line in PROVERBS:
        step += 1
        ids, mask = zip(*map(encode, line.split("|")))
        ids, mask = torch.tensor(ids), torch.tensor(mask)
        logits = model(ids[:, :-1], mask[:, :-1])
        nll = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = nll[mask[:, :-1] > 0].mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step={step} nll={loss.item():.17g}")
print(sum(p.sum().item() for p in model.parameters()))
