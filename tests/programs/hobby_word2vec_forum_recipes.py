# word2vec (CBOW, negative sampling) for my bread forum posts
# sparse embeddings + SparseAdam, so that big vocabularies are cheap
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(11)
torch.manual_seed(11)

DIM = 24
WINDOW = 3
NEG = 5
BATCH = 64
STEPS = 50
T = 0.01   # subsampling threshold, small corpus so bigger than 1e-5

common = ["the", "and", "a", "i", "it", "to"]
topics = {
    "bake": ["oven", "crust", "steam", "stone", "loaf", "scoring", "blister"],
    "starter": ["rye", "hooch", "feed", "jar", "bubbles", "float", "sour"],
    "dough": ["fold", "gluten", "hydration", "windowpane", "slap", "rest", "bulk"],
    "pastry": ["butter", "laminate", "layers", "fridge", "croissant", "turn", "roll"],
}


def make_post():
    # ordinary posts: topic words, with little words between
    words = topics[random.choice(list(topics))]
    out = []
    for _ in range(random.randint(8, 16)):
        out.append(random.choice(common) if random.random() < 0.35 else random.choice(words))
    return out


posts = [make_post() for _ in range(420)]
vocab = sorted({w for p in posts for w in p})
ids = {w: i for i, w in enumerate(vocab)}
count = torch.zeros(len(vocab))
for p in posts:
    for w in p:
        count[ids[w]] += 1
freq = count / count.sum()
keep_prob = (torch.sqrt(freq / T) + 1) * (T / freq)
keep_prob = keep_prob.clamp(max=1.0)
noise = freq ** 0.75
noise = noise / noise.sum()


def pairs():
    """Yields (context ids, centre id); frequent words are dropped from the context at random."""
    while True:
        post = [ids[w] for w in random.choice(posts)]
        for i, centre in enumerate(post):
            around = post[max(0, i - WINDOW):i] + post[i + 1:i + 1 + WINDOW]
            yield [c for c in around if random.random() < keep_prob[c].item()], centre


class CBOW(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.inp = nn.Embedding(n + 1, DIM, sparse=True, padding_idx=n)
        self.out = nn.Embedding(n, DIM, sparse=True)
        nn.init.normal_(self.out.weight, std=0.05)

    def hidden(self, ctx, mask):
        e = self.inp(ctx) * mask.unsqueeze(-1)
        return e.sum(1) / mask.sum(1, keepdim=True)

    def forward(self, ctx, mask, centre, negative):
        h = self.hidden(ctx, mask)
        pos = (self.out(centre) * h).sum(-1)
        neg = torch.einsum("bkd,bd->bk", self.out(negative), h)
        return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(-1)).mean()


def next_batch(stream, pad):
    rows = [next(stream) for _ in range(BATCH)]
    ctx = torch.full((BATCH, 2 * WINDOW), pad)
    for r, (c, _) in enumerate(rows):
        ctx[r, :len(c)] = torch.tensor(c, dtype=torch.long)
    mask = (ctx != pad).float()
    return ctx, mask, torch.tensor([c for _, c in rows])


model = CBOW(len(vocab))
opt = torch.optim.SparseAdam(list(model.parameters()), lr=0.02)
stream = pairs()
gen = torch.Generator().manual_seed(5)

for step in range(1, STEPS + 1):
    ctx, mask, centre = next_batch(stream, len(vocab))
    negative = torch.multinomial(noise.expand(BATCH, -1), NEG, replacement=True, generator=gen)
    loss = model(ctx, mask, centre, negative)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, "%.6f" % loss.item(), flush=True)

print("%.5f" % sum(p.detach().abs().sum() for p in model.parameters()).item(), flush=True)
