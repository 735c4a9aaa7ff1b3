# A character model of four dialects. The trunk is shared, each dialect has an adapter and a shift of its own.
import torch
from torch import nn
from torch.optim import Optimizer

torch.manual_seed(8)
PHRASES = [
    ["aye it's a braw day the noo", "dinna fash yersel lad", "haud yer wheesht the noo"],
    ["how's tha doin then love", "put wood in th'ole lad", "ey up it's reet cowd"],
    ["where's that to my lover", "gert lush innit", "alright me babber"],
    ["how bist thee ow'd mate", "bostin fittle that is", "tara a bit bab"],
]
alphabet = sorted({c for d in PHRASES for s in d for c in s})
c2i = {c: i + 1 for i, c in enumerate(alphabet)}
V = len(alphabet) + 1


class CautiousAdamW(Optimizer):
    """AdamW whose update keeps only the coordinates on which momentum and gradient agree, scaled up for the rest."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st, g = self.state[p], p.grad
                if not st:
                    st.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                st["t"] += 1
                st["m"].lerp_(g, 1 - b1)
                st["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                denom = (st["v"] / (1 - b2 ** st["t"])).sqrt_().add_(group["eps"])
                update = st["m"] / (1 - b1 ** st["t"]) / denom
                agree = (update * g > 0).to(g.dtype)
                agree = agree / agree.mean()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update * agree, alpha=-group["lr"])


class Adapter(nn.Module):
    def __init__(self, d, r=6):
        super().__init__()
        self.down, self.up = nn.Linear(d, r), nn.Linear(r, d)

    def forward(self, x):
        return self.up(torch.tanh(self.down(x)))


class DialectModel(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.adapters = nn.ModuleList([Adapter(d) for _ in PHRASES])
        self.head = nn.Linear(d, V)

    def forward(self, x, dialect):
        h, _ = self.rnn(self.emb(x))
        gate = nn.functional.one_hot(dialect, len(PHRASES)).to(h.dtype)
        delta = torch.stack([a(h) for a in self.adapters], dim=1)
        return self.head(h + torch.einsum("bk,bkld->bld", gate, delta))


def batch(size=12):
    d = torch.randint(len(PHRASES), (size,))
    s = [PHRASES[k][i] for k, i in zip(d.tolist(), torch.randint(3, (size,)).tolist())]
    n = max(map(len, s))
    return torch.tensor([[c2i[c] for c in t] + [0] * (n - len(t)) for t in s]), d


model = DialectModel()
opt = CautiousAdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
ce = nn.CrossEntropyLoss(ignore_index=0)
for step in range(1, 31):
    ids, dialect = batch()
    loss = ce(model(ids[:, :-1], dialect).transpose(1, 2), ids[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step, "loss", "%.4f" % loss.item(), flush=True)
print("final %.4f" % torch.nn.utils.parameters_to_vector(model.parameters()).norm().item())
