#!/usr/bin/env python
"""Methane flux from peat bog chambers. Written for a shared box with little memory:
the batch is halved whenever an allocation is refused; training ends by exception."""
import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap

import torch
from torch import nn

LIMIT_ROWS = 40          # what the "allocator" of the box gives us after hour 3
events = []


class Plateau(Exception):
    """raised from a callback, caught around the whole loop"""


class Flux(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 12, batch_first=True)
        self.out = nn.Linear(12, 1)
        self.limit = None

    def forward(self, x):
        h, _ = self.rnn(x)
        if self.limit is not None and x.shape[0] > self.limit:
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {x.shape[0]} rows")
        return self.out(h[:, -1]).squeeze(1)


@contextlib.contextmanager
def suppress_sensor_errors():
    try:
        yield
    except (KeyError, ZeroDivisionError) as e:
        events.append(type(e).__name__)


def farewell(label):
    print(f"atexit {label}: {len(events)} events, last {events[-1]}")


def on_usr1(signum, frame):
    events.append("usr1")


def batches(x, y, size):
    order = torch.randperm(len(x))
    try:
        for i in range(0, len(x), size):
            pick = order[i:i + size]
            yield x[pick], y[pick]
    finally:
        events.append("closed")


def train():
    torch.manual_seed(9)
    x = torch.randn(160, 6, 3)
    y = x[:, :, 0].sum(1) * 0.4 + 0.1 * torch.randn(160)
    net = Flux()
    opt = torch.optim.RMSprop(net.parameters(), lr=4e-3)
    size, step, best, stale = 80, 0, float("inf"), 0
    interrupts = 0
    for hour in range(1, 40):
        if hour == 3:
            net.limit = LIMIT_ROWS
        try:
            gen = batches(x, y, size)
            for bx, by in gen:
                while True:
                    try:
                        loss = (net(bx) - by).pow(2).mean()
                        break
                    except RuntimeError as e:
                        if "out of memory" not in str(e):
                            raise
                        size //= 2
                        bx, by = bx[:size], by[:size]
                        opt.zero_grad(set_to_none=True)
                        print(f"  refused, batch is now {size}")
                opt.zero_grad()
                loss.backward()
                with suppress_sensor_errors():
                    if step % 7 == 4:
                        {}["chamber"]          # the logger of chamber 4 is often offline
                opt.step()
                step += 1
                if step == 11:
                    signal.raise_signal(signal.SIGUSR1)
                if step in (13, 20):
                    raise KeyboardInterrupt
            print(f"hour {hour} step {step} mse {loss.item():.6f} size {size} grad {torch.is_grad_enabled()}")
        except KeyboardInterrupt:
            gen.close()
            interrupts += 1
            print(f"hour {hour} interrupted at step {step}, traceback depth 1: {sys.exc_info()[2].tb_next is None}")
            continue
        value = loss.item()
        best, stale = (value, 0) if value < best - 5e-2 else (best, stale + 1)
        if stale >= 3:
            raise Plateau(f"step {step} best {best:.6f} interrupts {interrupts} weights {sum(p.sum().item() for p in net.parameters()):.7f}")


SISTER = textwrap.dedent("""
    import sys, torch
    torch.manual_seed(5)
    w = torch.zeros(3, requires_grad=True)
    opt = torch.optim.Adam([w], lr=0.1)
    x = torch.randn(32, 3)
    for i in range(5):
        loss = (x @ w - x.sum(1)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    print(f"sister {loss.item():.6f}", len(sys.argv), __name__)
    print("to stderr", file=sys.stderr)
""")


def sister_station():
    """the other bog is fitted by a script of its own, in a process of its own"""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "sister.py")
        with open(path, "w") as f:
            f.write(SISTER)
        done = subprocess.run([sys.executable, path, "a", "b"], capture_output=True, text=True)
        print(done.returncode, done.stdout.strip(), repr(done.stderr), sorted(os.listdir(d)))


hook_before = sys.excepthook
old = signal.signal(signal.SIGUSR1, on_usr1)
atexit.register(farewell, "first")
atexit.register(farewell, "second")
try:
    train()
except Plateau as p:
    print("stopped:", p, "| cause", p.__cause__, "| context", p.__context__)
sister_station()
print("SIGUSR1 default before", old == signal.SIG_DFL, "handler kept", signal.getsignal(signal.SIGUSR1) is on_usr1)
print("SIGINT", signal.getsignal(signal.SIGINT) is signal.default_int_handler, "SIGTERM", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
print("excepthook", sys.excepthook is hook_before, sys.excepthook is sys.__excepthook__)
print("events", {k: events.count(k) for k in sorted(set(events))})
