"""Split learning for the glass-cutting line: three parties, one process.

The cutter (stage A) owns the acoustic features, the broker (stage B) owns the
trunk, the insurer (stage C) owns the labels.  Nothing but detached activations
goes forward over the link and nothing but their gradients comes back.
"""
from collections import deque

import torch
from torch import nn

torch.manual_seed(20)
torch.set_num_threads(1)

N_FEAT, N_HID, N_CLASS = 10, 24, 3
MICRO, PER_STEP, STEPS = 6, 4, 30


class Link:
    """A one-way mailbox which forgets the graph, as a socket would."""

    def __init__(self):
        self.box = deque()
        self.bytes = 0

    def put(self, t):
        t = t.detach().clone()
        self.bytes += t.numel() * t.element_size()
        self.box.append(t)

    def get(self):
        return self.box.popleft()


class Cutter(nn.Module):
    # no biases: the parties agreed that silence has to map to silence
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(N_FEAT, N_HID, bias=False)
        self.fc2 = nn.Linear(N_HID, N_HID, bias=False)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Broker(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(N_HID, N_HID)

    def forward(self, h):
        # the cutter may change its gain at will, so only directions are used
        length = h.pow(2).sum(1, keepdim=True).sqrt()
        return torch.tanh(self.mix(h / (length + 1e-6)))


class Insurer(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(N_HID, N_CLASS)

    def forward(self, h, y):
        return nn.functional.cross_entropy(self.head(h), y)


def recordings():
    g = torch.Generator().manual_seed(5)
    centers = torch.randn(N_CLASS, N_FEAT, generator=g)
    n = MICRO * PER_STEP * STEPS
    y = torch.randint(0, N_CLASS, (n,), generator=g)
    x = centers[y] + 0.8 * torch.randn(n, N_FEAT, generator=g)
    # the gate of the microphone was closed for one pane
    x[16 * MICRO * PER_STEP + 2 * MICRO + 3] = 0.0
    return x.split(MICRO), y.split(MICRO)


def main():
    a, b, c = Cutter(), Broker(), Insurer()
    opts = [torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.8) for m in (a, b, c)]
    ab, bc, cb, ba = Link(), Link(), Link(), Link()
    xs, ys = recordings()

    for step in range(STEPS):
        for o in opts:
            o.zero_grad()
        held_a, held_b, total = [], [], 0.0
        chunk = range(step * PER_STEP, (step + 1) * PER_STEP)
        # fill
        for i in chunk:
            h = a(xs[i])
            held_a.append(h)
            ab.put(h)
        for _ in chunk:
            h_in = ab.get().requires_grad_()
            h_out = b(h_in)
            held_b.append((h_in, h_out))
            bc.put(h_out)
        # drain
        for i in chunk:
            h_in = bc.get().requires_grad_()
            loss = c(h_in, ys[i]) / PER_STEP
            loss.backward()
            total += loss.item()
            cb.put(h_in.grad)
        for h_in, h_out in held_b:
            h_out.backward(gradient=cb.get())
            ba.put(h_in.grad)
        for h in held_a:
            h.backward(gradient=ba.get())
        for o in opts:
            o.step()
        print(f"round {step + 1:02d}  loss {total:.6f}")

    print("traffic forward", ab.bytes + bc.bytes, "bytes")
    print("checksum", float(sum(p.detach().sum() for m in (a, b, c) for p in m.parameters())))


if __name__ == "__main__":
    main()
