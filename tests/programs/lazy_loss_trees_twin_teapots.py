"""Losses as expressions.

>>> d = ((var("a") - var("p")) ** 2).sum() ** 0.5

builds a tree and computes nothing; `evaluate(tree, env)` walks it with tensors.  The tree can be printed, which is why we
do it at all: the loss ends up in the lab book in the form that was run.  Here: a triplet loss for teapot photographs.
"""
import torch
from torch import nn


class Expr:
    def __init__(self, op, *kids, const=None):
        self.op, self.kids, self.const = op, kids, const

    def __add__(self, o): return Expr("+", self, lift(o))
    def __radd__(self, o): return Expr("+", lift(o), self)
    def __sub__(self, o): return Expr("-", self, lift(o))
    def __mul__(self, o): return Expr("*", self, lift(o))
    def __rmul__(self, o): return Expr("*", lift(o), self)
    def __pow__(self, o): return Expr("^", self, lift(o))
    def sum(self): return Expr("sum", self)
    def mean(self): return Expr("mean", self)
    def plus(self): return Expr("plus", self)

    def __repr__(self):
        if self.op in "+-*^":
            return f"({self.kids[0]} {self.op} {self.kids[1]})"
        if self.op in ("var", "const"):
            return str(self.const)
        return f"{self.op}({self.kids[0]})"


def lift(x):
    return x if isinstance(x, Expr) else Expr("const", const=x)


def var(name):
    return Expr("var", const=name)


TABLE = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "^": lambda a, b: torch.pow(a, b),
    "sum": lambda a: a.sum(-1),
    "mean": lambda a: a.mean(),
    "plus": lambda a: torch.relu(a),
}


def evaluate(e, env, memo):
    if id(e) in memo:
        return memo[id(e)]
    if e.op == "var":
        out = env[e.const]
    elif e.op == "const":
        out = e.const
    else:
        out = TABLE[e.op](*(evaluate(k, env, memo) for k in e.kids))
    memo[id(e)] = out
    return out


anchor, match, other = var("anchor"), var("match"), var("other")
near = ((anchor - match) ** 2).sum() ** 0.5
far = ((anchor - other) ** 2).sum() ** 0.5
TRIPLET = (near - far + 0.8).plus().mean() + 0.01 * (near * near).mean()


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.fc = nn.Linear(6 * 6 * 6, 12)

    def forward(self, img):
        return self.fc(torch.relu(self.conv(img)).flatten(1))


def shoots(n, batch):
    """Photographs of one teapot by two visitors, and one of another teapot."""
    g = torch.Generator().manual_seed(31)
    pots = torch.randn(30, 1, 12, 12, generator=g)
    for i in range(n):
        who = torch.stack([torch.randperm(30, generator=g)[:2] for _ in range(batch)])
        a = pots[who[:, 0]] + 0.4 * torch.randn(batch, 1, 12, 12, generator=g)
        p = pots[who[:, 0]] + 0.4 * torch.randn(batch, 1, 12, 12, generator=g)
        o = pots[who[:, 1]] + 0.4 * torch.randn(batch, 1, 12, 12, generator=g)
        if i == 18:
            p[7] = a[7]           # the same upload under two names
        yield a, p, o


torch.manual_seed(9)
torch.set_num_threads(1)
net = Embedder()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.8)
print("loss =", TRIPLET)
for step, (a, p, o) in enumerate(shoots(42, 14), 1):
    env = {"anchor": net(a), "match": net(p), "other": net(o)}
    value = evaluate(TRIPLET, env, {})
    opt.zero_grad()
    value.backward()
    opt.step()
    print(f"{step:2d}: {value.item():.6f}")
print("net", sum(p.sum().item() for p in net.parameters()))
