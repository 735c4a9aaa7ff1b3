"""Structured (Kronecker / Monarch) layers for carillon bells: predict the next stroke of 64 bells from the last two.

Half precision on the CPU, mostly to see whether the structured layers stand it. The scaler starts absurdly high
and comes down by itself.
"""
import math

import torch
from torch import einsum, nn

CFG = dict(bells=64, side=8, rank=3, batch=32, steps=46, lr=6e-3, seed=1652, init_scale=2.0 ** 30)


class KroneckerSum(nn.Module):
    """y = sum_r (A_r kron B_r) x with x as a square, never building the big matrix."""

    def __init__(self, side, rank):
        super().__init__()
        s = (side * side * rank) ** -0.25
        self.a = nn.Parameter(torch.randn(rank, side, side) * s)
        self.b = nn.Parameter(torch.randn(rank, side, side) * s)

    def forward(self, x):
        t = einsum("rij,njk->nrik", self.a, x)
        return einsum("nrik,rlk->nil", t, self.b)


class Monarch(nn.Module):
    """Two block-diagonal matrices with a transposition between them."""

    def __init__(self, side):
        super().__init__()
        self.left = nn.Parameter(torch.randn(side, side, side) / math.sqrt(side))
        self.right = nn.Parameter(torch.randn(side, side, side) / math.sqrt(side))

    def forward(self, x):
        x = einsum("bij,nbj->nbi", self.left, x)
        return einsum("bij,njb->nib", self.right, x)


class Ringer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c["bells"], c["bells"])
        self.mix = nn.ModuleList([KroneckerSum(c["side"], c["rank"]), Monarch(c["side"])])
        self.norm = nn.LayerNorm(c["bells"])
        self.side = c["side"]

    def forward(self, prev, last):
        x = self.embed(prev) + self.embed(last).roll(1, -1)
        x = x.view(-1, self.side, self.side)
        for layer in self.mix:
            x = x + torch.tanh(layer(x))
        h = self.norm(x.flatten(1).float())
        return einsum("nd,vd->nv", h, self.embed.weight)


def change_ringing(c):
    """Plain hunt with accidents; a bell never strikes twice in a row, which the model may know (-inf in the mask)."""
    g = torch.Generator().manual_seed(c["seed"])
    n = c["bells"]
    while True:
        prev = torch.randint(n, (c["batch"],), generator=g)
        last = (prev + torch.randint(1, n, (c["batch"],), generator=g)) % n
        nxt = (last + 1 + prev % 3) % n
        mask = torch.zeros(c["batch"], n).scatter_(1, last[:, None], -math.inf)
        yield prev, last, nxt, mask


def main(c=CFG):
    torch.manual_seed(c["seed"])
    net = Ringer(c)
    opt = torch.optim.Adam(net.parameters(), lr=c["lr"])
    scaler = torch.amp.GradScaler("cpu", init_scale=c["init_scale"], growth_interval=200)
    for n, (prev, last, nxt, mask) in zip(range(1, c["steps"] + 1), change_ringing(c)):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(prev, last)
        logp = torch.log_softmax(logits.float() + mask, -1)
        loss = -logp.gather(1, nxt[:, None]).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"{n:02d} loss {loss.item():.5f} norm {norm.item():.4g} scale 2^{int(math.log2(scaler.get_scale()))}")
    print(f"sum {sum(p.detach().double().sum().item() for p in net.parameters()):.5f}")


main()
