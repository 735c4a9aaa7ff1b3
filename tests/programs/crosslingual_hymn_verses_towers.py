"""Aligns verses of hymns in several languages in one space (contrastive, learned temperature).

Starts with Finnish and Estonian; Livonian joins later through a small adapter of its own.
"""
import argparse
import torch
from torch import nn, Tensor


class MeanSquareScaled(torch.optim.Optimizer):
    """Steps of even size: each entry is divided by the root of its running mean square."""

    def __init__(self, params, lr=1e-3, beta=0.95):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["n"], st["sq"] = 0, torch.zeros_like(p)
                st["n"] += 1
                st["sq"].lerp_(p.grad.square(), 1 - group["beta"])
                fair = st["sq"] / (1 - group["beta"] ** st["n"])
                p.sub_(group["lr"] * p.grad / fair.sqrt())


class Adapter(nn.Module):
    def __init__(self, dim: int, rank: int):
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)          # starts as the identity

    def forward(self, h: Tensor) -> Tensor:
        return h + self.up(torch.tanh(self.down(h)))


class Towers(nn.Module):
    def __init__(self, n_in=40, dim=16):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(n_in, 32), nn.Tanh(), nn.Linear(32, dim))
        self.adapters = nn.ModuleDict()
        self.log_temp = nn.Parameter(torch.tensor(-1.0))

    def encode(self, verse: Tensor, lang: str) -> Tensor:
        h = self.shared(verse)
        if lang in self.adapters:
            h = self.adapters[lang](h)
        return nn.functional.normalize(h, dim=-1)

    def loss(self, left, right):
        sim = left @ right.T / self.log_temp.exp()
        gold = torch.arange(len(sim))
        return 0.5 * (nn.functional.cross_entropy(sim, gold) + nn.functional.cross_entropy(sim.T, gold))


class Hymnal:
    """Character n-gram profiles, reduced to 40 dense dimensions, of the same verse in three languages."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.maps = {k: torch.randn(12, 40, generator=self.g) for k in ("fin", "est", "liv")}

    def pair(self, a, b, n=16):
        sense = torch.randn(n, 12, generator=self.g)
        noisy = lambda k: sense @ self.maps[k] * 0.3 + 0.2 * torch.randn(n, 40, generator=self.g)
        return noisy(a), noisy(b)


def main(cfg):
    torch.manual_seed(cfg.seed)
    book, towers = Hymnal(cfg.seed), Towers()
    opt = MeanSquareScaled(towers.parameters(), lr=cfg.lr)
    for step in range(1, cfg.steps + 1):
        if step == cfg.join:
            towers.adapters["liv"] = Adapter(16, 4)
            opt.add_param_group({"params": list(towers.adapters["liv"].parameters())})
        second = "liv" if step >= cfg.join else "est"
        x, y = book.pair("fin", second)
        loss = towers.loss(towers.encode(x, "fin"), towers.encode(y, second))
        opt.zero_grad()
        loss.backward()
        print(f"[{step:02d}] fin-{second} loss={loss.item():.4f} temperature={towers.log_temp.exp().item():.4f}")
        opt.step()
    print("sum of squares of the parameters =", sum(p.detach().pow(2).sum().item() for p in towers.parameters()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1701)
    ap.add_argument("--steps", type=int, default=32)
    ap.add_argument("--join", type=int, default=15)
    ap.add_argument("--lr", type=float, default=4e-3)
    main(ap.parse_args())
