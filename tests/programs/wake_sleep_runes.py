"""A Helmholtz machine on 6x6 drawings of runes, trained with wake-sleep (Hinton et al., 1995).

wake : the recognition net explains a drawing, the generative net learns to reproduce it
sleep: the generative net dreams, the recognition net learns to explain the dream
There is no gradient through the binary units, and neither net sees the other's loss.
"""
import torch
import torch.nn.functional as F

torch.manual_seed(793)
RUNES = [
    "100001110011101101100001100001100001",
    "111110100010111110101000100100100010",
    "100000110000101000100000100000100000",
    "100001010010001100001100010010100001",
    "001000010100100010001000001000001000",
    "111100100010111100100010100010111100",
]


def drawings(n):
    base = torch.tensor([[float(c) for c in r] for r in RUNES])
    x = base[torch.randint(len(RUNES), (n,))]
    flip = torch.rand_like(x) < 0.03
    return torch.where(flip, 1 - x, x)


def bernoulli_nll(logits, bits):
    return F.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(-1)


class Generative(torch.nn.Module):
    def __init__(self, d2, d1, dx):
        super().__init__()
        self.top = torch.nn.Parameter(torch.zeros(d2))
        self.mid = torch.nn.Linear(d2, d1)
        self.out = torch.nn.Linear(d1, dx)

    @torch.no_grad()
    def dream(self, n):
        h2 = torch.bernoulli(torch.sigmoid(self.top).expand(n, -1))
        h1 = torch.bernoulli(torch.sigmoid(self.mid(h2)))
        return torch.bernoulli(torch.sigmoid(self.out(h1))), h1, h2

    def nll(self, x, h1, h2):
        return bernoulli_nll(self.top.expand_as(h2), h2) + bernoulli_nll(self.mid(h2), h1) + bernoulli_nll(self.out(h1), x)


class Recognition(torch.nn.Module):
    def __init__(self, d2, d1, dx):
        super().__init__()
        self.first = torch.nn.Linear(dx, d1)
        self.second = torch.nn.Linear(d1, d2)

    @torch.no_grad()
    def explain(self, x):
        h1 = torch.bernoulli(torch.sigmoid(self.first(x)))
        return h1, torch.bernoulli(torch.sigmoid(self.second(h1)))

    def nll(self, x, h1, h2):
        return bernoulli_nll(self.first(x), h1) + bernoulli_nll(self.second(h1), h2)


gen, rec = Generative(8, 20, 36), Recognition(8, 20, 36)
gen_opt = torch.optim.SGD(gen.parameters(), lr=0.08, momentum=0.8)
rec_opt = torch.optim.SGD(rec.parameters(), lr=0.08, momentum=0.8)

for night in range(1, 61):
    x = drawings(64)
    h1, h2 = rec.explain(x)
    wake = gen.nll(x, h1, h2).mean()
    gen_opt.zero_grad()
    wake.backward()
    gen_opt.step()

    x, h1, h2 = gen.dream(64)
    sleep = rec.nll(x, h1, h2).mean()
    rec_opt.zero_grad()
    sleep.backward()
    rec_opt.step()
    print(f"night {night:2d}  wake {wake.item():8.4f}  sleep {sleep.item():8.4f}", flush=True)

print(f"{sum(p.detach().double().abs().sum().item() for m in (gen, rec) for p in m.parameters()):.6f}")
