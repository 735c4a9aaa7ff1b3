# Which metre is a line of verse in? Syllables in, one of four metres out.
import random
import torch
from torch import nn

random.seed(8)
torch.manual_seed(8)

METRES = {"iamb": "01", "trochee": "10", "anapaest": "001", "dactyl": "100"}
STRESSED = ["light", "moon", "fire", "sea", "heart", "stone", "rose", "night", "wind", "gold", "sing", "dark"]
SLACK = ["the", "of", "and", "a", "in", "to", "my", "on", "with", "er", "ing", "ly"]
RARE = ["alack", "thrice", "yon", "zephyr"]
vocab = {s: i for i, s in enumerate(["<pad>"] + STRESSED + SLACK + RARE)}
names = list(METRES)


def line_of(metre):
    n = random.randint(8, 12)
    pattern = (METRES[metre] * 6)[:n]
    pattern = [c if random.random() > 0.06 else random.choice("01") for c in pattern]
    return [vocab[random.choice(STRESSED if c == "1" else SLACK)] for c in pattern]


def batch(size=16):
    ys = [random.randrange(4) for _ in range(size)]
    rows = [torch.tensor(line_of(names[y])) for y in ys]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor(ys)


class Scanner(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.syllables = nn.Embedding(len(vocab), dim, padding_idx=0)
        self.ear = nn.Conv1d(dim, 20, 3, padding=1)
        self.verdict = nn.Linear(20, 4)

    def forward(self, ids):
        heard = torch.relu(self.ear(self.syllables(ids).transpose(1, 2)))
        present = (ids != 0).unsqueeze(1)
        return self.verdict(heard.masked_fill(~present, 0.0).sum(2) / present.sum(2))


class Rescaler:
    """Divides the gradients by the root of the diagonal Fisher information, renewed every `every` calls."""

    def __init__(self, model, every):
        self.named = dict(model.named_parameters())
        self.every = every
        self.calls = 0
        self.sums = {k: torch.zeros_like(p) for k, p in self.named.items()}
        self.roots = None

    @torch.no_grad()
    def __call__(self):
        self.calls += 1
        for k, p in self.named.items():
            self.sums[k] += p.grad ** 2
        if self.calls % self.every == 0:
            self.roots = {k: (s / self.every).sqrt() for k, s in self.sums.items()}
            self.sums = {k: torch.zeros_like(s) for k, s in self.sums.items()}
        if self.roots is not None:
            for k, p in self.named.items():
                p.grad.copy_(0.02 * p.grad / self.roots[k])


scanner = Scanner()
rescale = Rescaler(scanner, every=18)
optimiser = torch.optim.SGD(scanner.parameters(), lr=0.4, momentum=0.8)
for k in range(1, 37):
    ids, metre = batch()
    score = scanner(ids)
    loss = nn.functional.cross_entropy(score, metre)
    optimiser.zero_grad(set_to_none=False)
    loss.backward()
    rescale()
    optimiser.step()
    right = int((score.argmax(1) == metre).sum())
    print("line batch", k, "xent", format(loss.item(), ".4f"), "right", right, "/ 16")
print("all weights squared and summed:", format(sum(float(p.detach().pow(2).sum()) for p in scanner.parameters()), ".4f"))
