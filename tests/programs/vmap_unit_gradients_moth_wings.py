"""Moth wing patterns, noisy volunteers: every example gets one vote of length one.

Per-example gradients by torch.func (vmap over grad of a functional_call), each brought to unit length,
then averaged. That way no single volunteer can drag the model. Plain SGD afterwards.
"""
import csv
import io
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap

FEATURES = ["span", "hue", "eyespots", "fringe", "symmetry"]
BATCH = 10


def volunteer_csv(rows=240):
    """The export of the portal. certainty: the slider that the volunteer moved, 0.0 to 1.0."""
    rnd = random.Random(77)
    out = io.StringIO()
    w = csv.writer(out)
    w.writerow(FEATURES + ["species", "certainty"])
    for i in range(rows):
        species = rnd.randrange(3)
        f = [rnd.gauss(0.8 * ((species + k) % 3 - 1), 0.7) for k in range(len(FEATURES))]
        certainty = round(rnd.uniform(0.2, 1.0), 1)
        if i == 126:
            certainty = 0.0                       # slider never touched
        w.writerow([f"{v:.4f}" for v in f] + [species, certainty])
    return out.getvalue()


def load(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    x = torch.tensor([[float(r[k]) for k in FEATURES] for r in rows])
    y = torch.tensor([int(r["species"]) for r in rows])
    c = torch.tensor([float(r["certainty"]) for r in rows])
    return x, y, c


torch.manual_seed(9)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(len(FEATURES), 16), nn.Tanh(), nn.Linear(16, 3))
sgd = torch.optim.SGD(net.parameters(), lr=0.4)


def example_loss(params, x, y, certainty):
    logits = functional_call(net, params, (x.unsqueeze(0),))
    return certainty * F.cross_entropy(logits, y.unsqueeze(0))


votes = vmap(grad_and_value(example_loss), in_dims=(None, 0, 0, 0))


def unit_mean(grads):
    squares = sum(g.flatten(1).pow(2).sum(1) for g in grads.values())
    length = squares.sqrt()
    mean = {}
    for name, g in grads.items():
        scaled = g / length.view(-1, *[1] * (g.dim() - 1))
        mean[name] = scaled.mean(0)
    return mean


x, y, c = load(volunteer_csv())
for step, lo in enumerate(range(0, len(x), BATCH), start=1):
    part = slice(lo, lo + BATCH)
    params = {k: p.detach() for k, p in net.named_parameters()}
    grads, losses = votes(params, x[part], y[part], c[part])
    direction = unit_mean(grads)
    for name, p in net.named_parameters():
        p.grad = direction[name]
    sgd.step()
    print(f"step {step:2d} loss {losses.mean().item():.6f}")

print("checksum", f"{sum(p.detach().sum() for p in net.parameters()).item():.6f}")
