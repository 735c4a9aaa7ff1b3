# Recipe cards packed into rows of 48 tokens; ALiBi attention inside a card only; float16 activations on the CPU.
import itertools
import torch
from torch import nn, autocast
from torch.amp import GradScaler

VOCAB, ROW, DIM, HEADS, LAYERS = 40, 48, 32, 4, 2


def cards(g):
    """Endless cards: an amount, a unit, a food, a verb, repeated with a drift of its own."""
    while True:
        start, stride = torch.randint(1, VOCAB, (2,), generator=g).tolist()
        n = int(torch.randint(4, 15, (), generator=g))
        yield [0] + [1 + (start + stride * i) % 5 + 5 * (i % 4) for i in range(n)]


def packed_rows(stream, rows=12):
    while True:
        ids, docs = [], []
        for _ in range(rows):
            flat, owner = [], []
            for k in itertools.count():
                card = next(stream)
                flat += card
                owner += [k] * len(card)
                if len(flat) > ROW:
                    break
            ids.append(flat[:ROW + 1])
            docs.append(owner[:ROW + 1])
        yield torch.tensor(ids), torch.tensor(docs)


def alibi_bias(docs):
    n = docs.shape[1]
    pos = torch.arange(n)
    dist = (pos[:, None] - pos[None, :]).float()
    slopes = 2.0 ** -(8.0 / HEADS * torch.arange(1, HEADS + 1))
    bias = -slopes[:, None, None] * dist
    visible = (docs[:, :, None] == docs[:, None, :]) & (dist >= 0)
    return bias[None].masked_fill(~visible[:, None], -torch.inf).half()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x, bias):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        att = (q @ k.mT) * (DIM // HEADS) ** -0.5 + bias
        x = x + self.proj((att.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(b, n, DIM))
        return x + self.down(torch.relu(self.up(self.n2(x))))


class Cook(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids, docs):
        x, bias = self.tok(ids), alibi_bias(docs)
        for layer in self.layers:
            x = layer(x, bias)
        return self.out(x)


torch.manual_seed(6)
model = Cook()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
scaler = GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=12)
batches = packed_rows(cards(torch.Generator().manual_seed(9)))

for step, (ids, docs) in enumerate(itertools.islice(batches, 38), 1):
    with autocast("cpu", dtype=torch.float16):
        logits = model(ids[:, :-1], docs[:, :-1])
    inside = docs[:, 1:] == docs[:, :-1]
    target = ids[:, 1:].masked_fill(~inside, -100)
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(f"step {step} loss {loss.item():.3f} scale 2^{torch.tensor(scaler.get_scale()).log2().item():.0f}")

print("norm of weights", round(torch.cat([p.detach().flatten() for p in model.parameters()]).norm().item(), 2))
