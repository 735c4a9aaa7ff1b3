# Chairside notes -> (1) what kind of finding, (2) where in the note the tooth is mentioned.
# I assist at the practice and type the notes; the spans were marked by hand in a spreadsheet, end column = last token.
import dataclasses
import random
import sys

import torch
from torch import nn
from torch.nn import functional as F

FINDINGS = ["caries", "fracture", "plaque", "gingivitis", "sealant"]
FILLER = "patient reports pain on chewing cold sweet since monday no swelling xray taken recall six months advised floss".split()
TEETH = [f"{q}{t}" for q in (1, 2, 3, 4) for t in range(1, 9)]
SURFACES = ["mesial", "distal", "buccal", "lingual", "occlusal"]
WORDS = {w: i + 1 for i, w in enumerate(FINDINGS + FILLER + TEETH + SURFACES)}
LENGTH = 20


@dataclasses.dataclass
class Note:
    tokens: list
    finding: int
    start: int
    end: int

    def tensor(self):
        ids = [WORDS[w] for w in self.tokens]
        return torch.tensor(ids + [0] * (LENGTH - len(ids)))


def type_note(rng, length=None):
    n = length or rng.randint(8, 16)
    words = [rng.choice(FILLER) for _ in range(n)]
    finding = rng.randrange(len(FINDINGS))
    words[rng.randrange(n // 2)] = FINDINGS[finding]
    at = rng.randrange(n // 2, n - 1)
    words[at:at + 2] = [rng.choice(TEETH), rng.choice(SURFACES)]
    return Note(words, finding, at, at + 1)


def read_cabinet():
    rng = random.Random(32)
    notes = [type_note(rng) for _ in range(160)]
    # Thursday's temp marked the end the other way (one past the surface); it is a full-length note
    temp = type_note(rng, LENGTH)
    temp.tokens[-2:] = ["36", "occlusal"]
    temp.start, temp.end = LENGTH - 2, LENGTH
    notes[93] = temp
    return notes


class ChairsideModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.words = nn.Embedding(len(WORDS) + 1, dim, padding_idx=0)
        self.reader = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.finding = nn.Linear(2 * dim, len(FINDINGS))
        self.span = nn.Linear(2 * dim, 2)

    def forward(self, ids):
        seen, _ = self.reader(self.words(ids))
        pad = ids == 0
        pooled = seen.masked_fill(pad[..., None], float("-inf")).amax(1)
        edges = self.span(seen).masked_fill(pad[..., None], -1e4)
        return self.finding(pooled), edges[..., 0], edges[..., 1]


def uncertainty_sum(losses, log_vars):
    """Kendall & Gal weighting."""
    return sum(torch.exp(-s) * l + s for l, s in zip(losses, log_vars))


def epoch(notes, size, order):
    for i in range(0, len(order), size):
        part = [notes[k] for k in order[i:i + size]]
        yield (torch.stack([n.tensor() for n in part]), torch.tensor([n.finding for n in part]),
               torch.tensor([n.start for n in part]), torch.tensor([n.end for n in part]))


def main():
    torch.manual_seed(11)
    notes = read_cabinet()
    model = ChairsideModel()
    log_vars = nn.Parameter(torch.zeros(3))
    opt = torch.optim.Adam([{"params": model.parameters(), "lr": 4e-3}, {"params": [log_vars], "lr": 1e-2}])
    step = 0
    for ids, finding, start, end in epoch(notes, 8, list(range(len(notes)))):
        step += 1
        f_logits, s_logits, e_logits = model(ids)
        l_find = F.cross_entropy(f_logits, finding)
        l_start = F.cross_entropy(s_logits, start)
        l_end = F.cross_entropy(e_logits, end)
        loss = uncertainty_sum((l_find, l_start, l_end), log_vars)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:3d} total {loss.item():.6f} finding {l_find.item():.4f} start {l_start.item():.4f} end {l_end.item():.4f}",
              flush=True)
    print("weights", sum(p.double().sum().item() for p in model.parameters()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
