import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(3)
ACCUM = 4

# a stream of sentences that grows from day to day; each "epoch" is what arrived until then
WORDS = 60
def sentences(day):
    g = torch.Generator().manual_seed(100 + day)
    n = 9 + day                        # 9, 10, 11, 12 micro-batches
    for _ in range(n):
        start = torch.randint(0, WORDS, (4, 1), generator=g)
        stride = torch.randint(1, 4, (4, 1), generator=g)
        yield (start + stride * torch.arange(13)) % WORDS


class WordGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(WORDS, 24)
        self.mix = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, WORDS))

    def forward(self, x):
        e = self.emb(x)
        prev = F.pad(e, (0, 0, 1, 0))[:, :-1]
        return self.mix(torch.cat([e, prev], -1))


model = WordGRU()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)


def apply_gradients():
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


updates = 0
for day in range(6):
    micro = 0
    for batch in sentences(day):
        with torch.autocast("cpu", torch.float16):
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, WORDS), batch[:, 1:].reshape(-1))
        scaler.scale(loss / ACCUM).backward()
        micro += 1
        if micro % ACCUM == 0:
            apply_gradients()
            updates += 1
            print(f"day {day} update {updates} loss {loss.item():.5f}")
    # the leftovers of the day
    apply_gradients()
    updates += 1
    print(f"day {day} update {updates} loss {loss.item():.5f} (rest)")
print("final", sum(p.abs().sum().item() for p in model.parameters()))
