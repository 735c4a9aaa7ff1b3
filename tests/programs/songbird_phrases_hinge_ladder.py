import torch
import torch.nn as nn

INF = float("inf")


class SongNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(12, 16, 5, stride=2)
        self.rec = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 8)

    def forward(self, mel):
        h = torch.relu(self.conv(mel)).transpose(1, 2)
        return self.out(self.rec(h)[0].amax(1))


class SemiHardMiner:
    """For every anchor: its farthest mate, and the nearest stranger that is farther than that."""

    def __call__(self, emb, who):
        n = len(who)
        gap = torch.cdist(emb, emb).detach()
        mate = (who[:, None] == who[None, :]) & ~torch.eye(n, dtype=torch.bool)
        other = who[:, None] != who[None, :]
        far, p = gap.masked_fill(~mate, -INF).max(1)
        outside = gap.masked_fill(~other | (gap <= far[:, None]), INF)
        near, q = outside.min(1)
        usable = torch.isfinite(far) & torch.isfinite(near)
        return usable, p, q, (near - far)


def squared(a, b):
    return (a - b).pow(2).sum(-1)


def recordings(gen, n, species):
    who = torch.randint(0, species, (n,), generator=gen)
    tick = torch.arange(40) / 40
    pitch = 2 + 9 * (who.float() / 6)[:, None] + 1.5 * torch.sin(6.28 * tick * (1 + who[:, None] % 3))
    mel = torch.exp(-(torch.arange(12)[None, :, None] - pitch[:, None, :]) ** 2)
    return mel + 0.15 * torch.randn(n, 12, 40, generator=gen), who


def learn(rounds=42):
    torch.manual_seed(14)
    gen = torch.Generator().manual_seed(15)
    net, miner, margin = SongNet(), SemiHardMiner(), 0.05
    opt = torch.optim.Adam(net.parameters(), lr=0.012)
    calm = 0
    for r in range(1, rounds + 1):
        size = 3 if r % 7 == 0 else 24
        mel, who = recordings(gen, size, species=6)
        emb = net(mel)
        usable, p, q, slack = miner(emb, who)
        if not usable.any():
            print(f"round {r:2d} no triplet among {size} phrases")
            continue
        hinge = torch.relu(margin + squared(emb, emb[p]) - squared(emb, emb[q]))[usable]
        loss = hinge.sum() / usable.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        tight = slack[usable].min().item()
        print(f"round {r:2d} margin {margin:.2f} hinge {loss.item():.5f} usable {int(usable.sum()):2d} slack {tight:.4f}")
        calm = calm + 1 if loss.item() < 0.2 * margin else 0
        if calm >= 2 and margin < 30:
            margin, calm = margin * 4, 0
            print(f"         next rung: margin {margin:.2f}")
    return net


if __name__ == "__main__":
    net = learn()
    print("final weights, squares summed:", sum(p.detach().pow(2).sum().item() for p in net.parameters()))
