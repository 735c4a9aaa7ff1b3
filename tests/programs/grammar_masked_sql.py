import copy
import torch
import torch.nn as nn

# 0 pad, 1 select, 2 from, 3 where, 4 and, 5 end, 6..17 columns, 18..23 relations, 24..39 values
COLS, TABS, VALS = list(range(6, 18)), list(range(18, 24)), list(range(24, 40))
FOLLOW = {1: COLS, 2: TABS, 3: COLS, 4: COLS, 5: [0], 0: [0]}
FOLLOW.update({c: COLS + VALS + [2] for c in COLS})
FOLLOW.update({t: [3, 5] for t in TABS})
FOLLOW.update({v: [4, 5] for v in VALS})


class SqlDecoder(nn.Module):
    def __init__(self, n=40, d=48):
        super().__init__()
        self.embed = nn.Embedding(n, d)
        self.question = nn.EmbeddingBag(300, d)
        self.rnn = nn.LSTM(2 * d, d, batch_first=True)
        self.head = nn.Linear(d, n, bias=False)
        self.head.weight = self.embed.weight
        allowed = torch.zeros(n, n, dtype=torch.bool)
        for a, bs in FOLLOW.items():
            allowed[a, bs] = True
        self.register_buffer("bias", torch.zeros(n, n).masked_fill(~allowed, float("-inf")))

    def forward(self, words, prefix):
        q = self.question(words).unsqueeze(1).expand(-1, prefix.size(1), -1)
        h, _ = self.rnn(torch.cat([self.embed(prefix), q], -1))
        return self.head(h) + self.bias[prefix]


def sample(rng):
    pick = lambda pool: pool[int(torch.randint(len(pool), (1,), generator=rng))]
    q = [1, pick(COLS), pick(COLS), 2, pick(TABS)]
    for i in range(int(torch.randint(0, 3, (1,), generator=rng))):
        q += [3 if i == 0 else 4, pick(COLS), pick(VALS)]
    q.append(5)
    return torch.tensor(q + [0] * (14 - len(q)))


rng = torch.Generator().manual_seed(2)
torch.manual_seed(2)
model = SqlDecoder()
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=32)

for step in range(32):
    sql = torch.stack([sample(rng) for _ in range(12)])
    words = torch.randint(0, 300, (12, 10), generator=rng)
    logits = model(words, sql[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), sql[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.lerp_(p, 0.1)
        ema_loss = nn.functional.cross_entropy(ema(words, sql[:, :-1]).flatten(0, 1), sql[:, 1:].flatten())
    print(f"[{step + 1}/32] loss {loss.item():.4f} ema {ema_loss.item():.4f}")
print("total", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
