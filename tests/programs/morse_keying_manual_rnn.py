#!/usr/bin/env python
"""Elman net that continues morse code, backward pass written out (no autograd)."""
import torch

torch.set_grad_enabled(False)
torch.manual_seed(3)

CODE = {"e": ".", "i": "..", "s": "...", "a": ".-", "n": "-.", "r": ".-.", "o": "---", "m": "--", "d": "-.."}
SYM = [".", "-", " "]
WORDS = ["sea", "mire", "radio", "", "drama", "snider", "romeo", "aside", "", "demo", "mad", "rose"]


def keyed(word):
    return [SYM.index(c) for c in " ".join(CODE[l] for l in word)]


def onehot(i):
    v = torch.zeros(3)
    v[i] = 1
    return v


class Elman:
    def __init__(self, hidden=14):
        self.U = torch.randn(hidden, 3) * 0.4
        self.R = torch.randn(hidden, hidden) * 0.2
        self.b = torch.zeros(hidden)
        self.O = torch.randn(3, hidden) * 0.3
        self.c = torch.zeros(3)

    def names(self):
        return ["U", "R", "b", "O", "c"]

    def through(self, seq, forced):
        h, prev = torch.zeros(len(self.b)), onehot(2)
        trace, loss = [], 0.0
        for want in seq:
            h0 = h
            h = torch.tanh(self.U @ prev + self.R @ h + self.b)
            z = self.O @ h + self.c
            logp = z - z.max() - (z - z.max()).exp().sum().log()
            loss -= logp[want].item()
            trace.append((prev, h0, h, logp.exp(), want))
            own = onehot(int(z.argmax()))
            prev = onehot(want) if torch.rand(()) < forced else own
        return loss, trace

    def back(self, trace):
        g = {n: torch.zeros_like(getattr(self, n)) for n in self.names()}
        dh = torch.zeros(len(self.b))
        for x, h0, h, p, want in reversed(trace):
            dz = p - onehot(want)
            g["O"] += torch.outer(dz, h)
            g["c"] += dz
            da = (self.O.T @ dz + dh) * (1 - h * h)
            g["U"] += torch.outer(da, x)
            g["R"] += torch.outer(da, h0)
            g["b"] += da
            dh = self.R.T @ da
        return g


net = Elman()
velocity = {n: torch.zeros_like(getattr(net, n)) for n in net.names()}
shortest = float("inf")
for step in range(1, 41):
    word = WORDS[(step * 5) % len(WORDS)]
    forced = 1.0 if step <= 20 else 0.9
    loss, trace = net.through(keyed(word), forced)
    grads = net.back(trace)
    size = sum((v * v).sum() for v in grads.values()).sqrt().item()
    scale = min(1.0, 2.0 / size) if size > 0 else 0.0
    for n in net.names():
        velocity[n] = 0.7 * velocity[n] - 0.04 * scale * grads[n]
        setattr(net, n, getattr(net, n) + velocity[n])
    if trace:
        shortest = min(shortest, loss / len(trace))
    print(f"step {step} word {word or '(pause)'} loss {loss:.4f} gradient {size:.4f} best {shortest:.4f}")

print("weights, squared and summed:", sum((getattr(net, n) ** 2).sum().item() for n in net.names()))
