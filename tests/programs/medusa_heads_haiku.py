"""A tiny decoder with extra heads that guess the tokens after the next (Medusa); heads are switched on one by one."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1686)
V, D, T, HEADS, MICRO = 40, 24, 14, 4, 2


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.block = nn.TransformerEncoderLayer(D, 3, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.heads = nn.ModuleList(nn.Linear(D, V) for _ in range(HEADS))

    def forward(self, ids):
        n = ids.shape[1]
        ban = torch.full((n, n), float("-inf")).triu(1)
        x = self.block(self.tok(ids) + self.pos(torch.arange(n)), src_mask=ban)
        return [head(x) for head in self.heads]


def haiku(n):
    start = torch.randint(1, V, (n, 1))
    ids = (start + 3 * torch.arange(T)) % (V - 1) + 1
    length = torch.randint(2, T + 1, (n, 1))
    return ids, torch.arange(T) < length


def head_losses(logits, ids, alive):
    for k, guess in enumerate(logits, start=1):
        target = ids.masked_fill(~alive, -100)[:, k:]
        guess = guess[:, :-k]
        n = (target != -100).sum()
        total = F.cross_entropy(guess.reshape(-1, V).float(), target.reshape(-1), ignore_index=-100, reduction="sum")
        right = (guess.argmax(-1) == target).sum() / n          # nan where no haiku of the batch is long enough
        yield total / n.clamp(min=1), right


net = Decoder()
opt = torch.optim.AdamW([{"params": h.parameters(), "lr": 6e-3} for h in net.heads]
                        + [{"params": [p for m in (net.tok, net.pos, net.block) for p in m.parameters()], "lr": 2e-3}])
for step in range(1, 21):
    on = 1 + step // 6
    logged = 0.0
    for _ in range(MICRO):
        ids, alive = haiku(3)
        if step % 5 == 0:
            alive[:, 3:] = False
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(ids)
        losses, hits = zip(*head_losses(logits, ids, alive))
        loss = sum(losses[:on]) / MICRO
        loss.backward()
        logged += loss.item()
    opt.step()
    opt.zero_grad()
    print(step, on, repr(logged), *("%.3f" % h.item() for h in hits))
print(sum(p.detach().double().sum().item() for p in net.parameters()))
