import torch
import torch.nn as nn
import torch.nn.functional as F

KINDS = ["anagram", "hidden", "homophone", "double"]


class Clues:
    """Word ids of cryptic clues; each kind of clue has its own indicator words."""

    def __init__(self, n, batch, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, len(KINDS), (n,), generator=g)
        self.x = torch.randint(20, 60, (n, 7), generator=g)
        for i in range(n):
            if i % 6:
                self.x[i, i % 7] = 4 * self.y[i] + i % 4
            if i % 3 == 0:
                self.x[i, (i + 2) % 7] = 4 * self.y[i] + (i + 1) % 4
        self.batch = batch

    def __iter__(self):
        yield from zip(self.x.split(self.batch), self.y.split(self.batch))


class Solver(nn.Module):
    def __init__(self, d=24, depth=3, certain=0.7):
        super().__init__()
        self.emb = nn.Embedding(60, d)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.exits = nn.ModuleList(nn.Linear(d, len(KINDS)) for _ in range(depth))
        self.certain = certain

    def forward(self, ids, labels):
        h = self.emb(ids).mean(1) * 4
        alive = torch.ones(len(h), dtype=torch.bool)
        left_at = torch.full((len(h),), float("inf"))
        total, hits = h.new_zeros(()), []
        for depth, (block, leave) in enumerate(zip(self.blocks, self.exits)):
            h = h + block(h).float()
            logits, gold = leave(h[alive]).float(), labels[alive]
            total = total + F.cross_entropy(logits, gold, reduction="sum") / len(h)
            with torch.no_grad():
                hits.append((logits.argmax(-1) == gold).float().mean())
                doubt = torch.special.entr(logits.softmax(-1)).sum(-1)
                gone = alive.nonzero()[:, 0][doubt < self.certain]
                left_at[gone] = depth
                alive = alive.clone()
                alive[gone] = False
        return total, torch.stack(hits), left_at


def train():
    torch.manual_seed(5)
    solver = Solver()
    optimizer = torch.optim.Adam(solver.parameters(), lr=1.2e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=30)
    shown = 0
    for epoch in range(4):
        for ids, labels in Clues(120, 12, 19):
            with torch.autocast("cpu", dtype=torch.float16):
                loss, hits, left = solver(ids, labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            shown += 1
            seen = " ".join("  - " if torch.isnan(v) else f"{v:.2f}" for v in hits)
            print(f"step {shown:2d} loss {loss.item():.4f} right {seen} overall {hits.nanmean():.3f} "
                  f"undecided {int(torch.isinf(left).sum()):2d} scale 2^{int(torch.tensor(scaler.get_scale()).log2())}")
    print("squared weights", round(sum(p.detach().double().pow(2).sum().item() for p in solver.parameters()), 5))


train()
