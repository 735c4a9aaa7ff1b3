"""Graph attention over small molecules, dense adjacency, a property per molecule."""
import torch
from torch import nn

torch.manual_seed(19)
torch.set_num_threads(1)

ATOMS, KINDS = 7, 4


class AttentionLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.value = nn.Linear(size, size, bias=False)
        self.source = nn.Linear(size, 1)
        self.sink = nn.Linear(size, 1)

    def forward(self, h, bonds):
        scores = nn.functional.leaky_relu(self.source(h) + self.sink(h).transpose(1, 2), 0.2)
        scores = scores.masked_fill(~bonds, float("-inf"))
        attention = torch.softmax(scores, dim=-1)
        return h + torch.tanh(attention @ self.value(h))


class Molecules(nn.Module):
    def __init__(self, size=16, depth=2):
        super().__init__()
        self.atom = nn.Embedding(KINDS, size)
        self.layers = nn.ModuleList(AttentionLayer(size) for _ in range(depth))
        self.readout = nn.Linear(size, 1)

    def forward(self, kinds, bonds):
        h = self.atom(kinds)
        for layer in self.layers:
            h = layer(h, bonds)
        return self.readout(h.sum(dim=1)).squeeze(-1)


def chain(generator):
    """A chain of atoms with a few rings closed."""
    bonds = torch.zeros(ATOMS, ATOMS, dtype=torch.bool)
    for i in range(ATOMS - 1):
        bonds[i, i + 1] = bonds[i + 1, i] = True
    a, b = torch.randperm(ATOMS, generator=generator)[:2].tolist()
    bonds[a, b] = bonds[b, a] = True
    return bonds


def batch(generator, salt=False):
    kinds = torch.randint(0, KINDS, (8, ATOMS), generator=generator)
    bonds = torch.stack([chain(generator) for _ in range(8)])
    if salt:                                   # the sodium of a salt is bound to nothing
        bonds[3, -1, :] = False
        bonds[3, :, -1] = False
    target = (kinds == 2).sum(1).float() + 0.1 * bonds.sum((1, 2)).float()
    return kinds, bonds, target


def run(steps=40):
    generator = torch.Generator().manual_seed(77)
    model = Molecules()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        kinds, bonds, target = batch(generator, salt=step in (14, 29))
        loss = nn.functional.l1_loss(model(kinds, bonds), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, f"{loss.item():.4f}")
    return model


model = run()
print("finite", int(all(bool(torch.isfinite(p).all()) for p in model.parameters())))
