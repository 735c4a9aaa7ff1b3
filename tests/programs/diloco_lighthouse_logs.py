"""DiLoCo in one process: two "islands" train their own copy with AdamW for H steps on their own logbooks, then the
mean difference to the shared weights is handed to Nesterov SGD as if it were a gradient.  Byte-level model."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
H, ROUNDS, BLOCK = 6, 7, 40
NORTH = "Skerry light. {h:02d} h. Wind NW {w}, swell high. Lamp trimmed, oil {o} gal. Two ships seen. "
SOUTH = "Cape light. {h:02d} h. Calm, haze. Lens cleaned, oil {o} gal. Fishing boats {w}. Fog horn tested. "


def logbook(template, seed):
    g = torch.Generator().manual_seed(seed)
    text = ""
    for day in range(60):
        h, w, o = (int(torch.randint(lo, hi, (1,), generator=g)) for lo, hi in ((0, 24), (1, 10), (10, 99)))
        text += template.format(h=h, w=w, o=o)
    return torch.tensor(list(text.encode()), dtype=torch.long)


class Mixer(nn.Module):
    """Causal depthwise convolution and a gate; cheap stand-in for attention."""

    def __init__(self, d, k=8):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.conv = nn.Conv1d(d, d, k, groups=d)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.k = k

    def forward(self, x):
        h = self.norm(x).transpose(1, 2)
        h = self.conv(F.pad(h, (self.k - 1, 0))).transpose(1, 2)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class ByteLM(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.layers = nn.Sequential(Mixer(d), Mixer(d))
        self.out = nn.Linear(d, 128, bias=False)
        self.out.weight = self.emb.weight
        nn.init.normal_(self.emb.weight, std=1 / math.sqrt(d))

    def forward(self, ids):
        return self.out(self.layers(self.emb(ids)))


class Island:
    def __init__(self, shared, text, seed):
        self.model = copy.deepcopy(shared)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=6e-3)
        self.text, self.gen = text, torch.Generator().manual_seed(seed)

    def step(self):
        at = torch.randint(len(self.text) - BLOCK - 1, (12,), generator=self.gen)
        rows = torch.stack([self.text[i:i + BLOCK + 1] for i in at])
        loss = F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def pull(self, shared):
        for p, s in zip(self.model.parameters(), shared.parameters()):
            p.copy_(s)


shared = ByteLM()
outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
islands = [Island(shared, logbook(NORTH, 1), 10), Island(shared, logbook(SOUTH, 2), 20)]

n = 0
for r in range(ROUNDS):
    for _ in range(H):
        n += 1
        losses = [i.step() for i in islands]
        print(f"{n} round {r} loss {sum(losses) / 2:.4f} ({losses[0]:.3f} / {losses[1]:.3f})", flush=True)
    for s, *copies in zip(shared.parameters(), *(i.model.parameters() for i in islands)):
        s.grad = s.detach() - torch.stack([c.detach() for c in copies]).mean(0)
    outer.step()
    for i in islands:
        i.pull(shared)
print(f"shared weights {sum(p.detach().double().pow(2).sum().item() for p in shared.parameters()):.5f}")
