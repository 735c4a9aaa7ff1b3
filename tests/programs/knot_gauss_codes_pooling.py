"""Is a knot alternating? Classify diagrams that are given as signed Gauss codes."""
import random
import torch
import torch.nn as nn

rng = random.Random(30)


def diagram(crossings):
    """A list of (crossing, over, sign), each crossing met twice, and whether over and under take turns."""
    visits = [c for c in range(crossings)] * 2
    rng.shuffle(visits)
    alternating = rng.random() < 0.5
    over_next, met, code = True, {}, []
    for c in visits:
        over = over_next if alternating else (not met[c] if c in met else rng.random() < 0.5)
        met[c] = over
        code.append((c, int(over), rng.choice([-1, 1])))
        over_next = not over_next
    return code, int(alternating)


def simplify(code):
    """First Reidemeister move: a crossing that is met twice in a row is a loop and can be undone."""
    i = 0
    while len(code) > 1 and i < len(code):
        if code[i][0] == code[(i + 1) % len(code)][0]:
            gone = code[i][0]
            code = [v for v in code if v[0] != gone]
            i = 0
        else:
            i += 1
    return code


class KnotNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.visit = nn.Linear(4, width)
        self.walk = nn.GRU(width, width, batch_first=True)
        self.answer = nn.Linear(2 * width, 2)

    def one(self, code):
        pieces = []
        for k, (c, over, sign) in enumerate(code):
            before = code[k - 1][1]
            pieces.append(torch.tensor([[over, before, sign, float(over == before)]], dtype=torch.float32))
        steps = torch.cat(pieces)
        seen, last = self.walk(torch.tanh(self.visit(steps))[None])
        return torch.cat([seen.mean(1), last[0]], 1)

    def forward(self, codes):
        return self.answer(torch.cat([self.one(c) for c in codes]))


def notebook(pages, per_page):
    for page in range(pages):
        yield [diagram(2 if (page, n) == (20, 5) else rng.randint(7, 10)) for n in range(per_page)]


torch.manual_seed(3)
net = KnotNet()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for page, entries in enumerate(notebook(32, 8), 1):
    codes, labels = zip(*entries)
    out = net([simplify(c) for c in codes])
    loss = nn.functional.cross_entropy(out, torch.tensor(labels))
    opt.zero_grad(); loss.backward(); opt.step()
    print("page", page, "loss", round(loss.item(), 5), "crossings", sum(len(c) for c in codes) // 2)
print("weights", round(sum(p.abs().sum().item() for p in net.parameters()), 4))
