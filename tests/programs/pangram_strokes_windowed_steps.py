import string

import torch
from torch import nn

torch.manual_seed(77)
POINTS, T, WINDOW = 10, 50, 8

COPYBOOK = """the quick brown fox jumps over the lazy dog
pack my box with five dozen liquor jugs
how vexingly quick daft zebras jump
the five boxing wizards jump quickly
sphinx of black quartz judge my vow
waltz bad nymph for quick jigs vex
quick zephyrs blow vexing daft jim
two driven jocks help fax my big quiz
jinxed wizards pluck ivy from the big quilt
a stitch in time saves nine
still waters run deep
no smoke without fire
many hands make light work
the early bird catches the worm
all that glitters is not gold
a rolling stone gathers no moss
better late than never
birds of a feather flock together
every cloud has a silver lining
actions speak louder than words
when in rome do as the romans do
where there is a will there is a way
look before you leap
easy come easy go
the pen is mightier than the sword
out of sight out of mind
honesty is the best policy
practice makes perfect
fortune favours the bold
rome was not built in a day
a watched pot never boils
let sleeping dogs lie""".splitlines()


class Pen:
    """Strokes of each letter: a fixed shape and the tremor of the hand."""

    def __init__(self):
        self.shape = torch.randn(26, POINTS, 2).cumsum(1) * 0.3

    def write(self, line):
        ids = torch.tensor([string.ascii_lowercase.index(c) for c in line if c != " "])
        return ids, self.shape[ids] + 0.05 * torch.randn(len(ids), POINTS, 2)


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.letter = nn.Embedding(26, 12)
        self.inp = nn.Linear(2 * POINTS + 12 + 2, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 2 * POINTS)

    def forward(self, noisy, t, ids):
        angle = t / T * torch.pi / 2
        h = torch.cat([noisy.flatten(1), self.letter(ids), angle.sin()[:, None], angle.cos()[:, None]], 1)
        h = torch.tanh(self.inp(h))
        h = h + torch.tanh(self.mid(h))
        return self.out(h).view_as(noisy)


class WindowedAdagrad(torch.optim.Optimizer):
    """Adagrad that remembers the last few gradients only."""

    def __init__(self, params, lr=2e-3, window=WINDOW):
        super().__init__(params, dict(lr=lr, window=window))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                seen = self.state[p].setdefault("squares", [])
                seen.append(p.grad * p.grad)
                del seen[:-group["window"]]
                p.sub_(group["lr"] * p.grad / torch.stack(seen).sum(0).sqrt())


pen, net = Pen(), Denoiser()
optimizer = WindowedAdagrad(net.parameters())
alpha_bar = torch.cos(torch.arange(1, T + 1) / (T + 1) * torch.pi / 2) ** 2

for i, line in enumerate(COPYBOOK):
    ids, strokes = pen.write(line)
    t = torch.randint(0, T, (len(ids),))
    eps = torch.randn_like(strokes)
    ab = alpha_bar[t][:, None, None]
    noisy = ab.sqrt() * strokes + (1 - ab).sqrt() * eps
    loss = (net(noisy, t.float(), ids) - eps).pow(2).mean()
    net.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"line {i + 1:2d} ({len(ids)} letters) loss {loss.item():.5f}")

print("squares of the weights sum to", f"{sum((p ** 2).sum().item() for p in net.parameters()):.5f}")
