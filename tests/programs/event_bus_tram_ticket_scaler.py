"""Fare class from tram ticket scans. Everything is an event on a queue; handlers subscribe.

Half precision on the depot's CPU box; the scaler starts high on purpose and finds its own height.
"""
import queue
from collections import defaultdict

import torch
import torch.nn as nn

CLASSES, PIXELS, LAST = 7, 96, 48


class Bus:
    def __init__(self):
        self.pending = queue.Queue()
        self.handlers = defaultdict(list)

    def on(self, kind):
        def register(fn):
            self.handlers[kind].append(fn)
            return fn
        return register

    def emit(self, kind, **payload):
        self.pending.put((kind, payload))

    def run(self):
        while not self.pending.empty():
            kind, payload = self.pending.get()
            for fn in self.handlers[kind]:
                fn(**payload)


torch.manual_seed(505)
torch.set_num_threads(1)
bus = Bus()
model = nn.Sequential(nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.8)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=15)
rng = torch.Generator().manual_seed(1)
prints = torch.randn(CLASSES, PIXELS, generator=rng)
book = {"skipped": 0, "grime": 0.2}


@bus.on("tick")
def draw(step):
    # curriculum: clean tickets first, then what the inspectors really find under the seats
    label = torch.randint(CLASSES, (32,), generator=rng)
    scan = prints[label] * 0.4 + book["grime"] * torch.randn(32, PIXELS, generator=rng)
    bus.emit("batch", step=step, scan=scan, label=label)


@bus.on("batch")
def learn(step, scan, label):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(scan)
    loss = nn.functional.cross_entropy(logits.float(), label)
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    bus.emit("learned", step=step, loss=loss.item(), backed_off=scaler.get_scale() < before)


@bus.on("learned")
def keep_book(step, loss, backed_off):
    book["skipped"] += backed_off
    note = "  (skipped, scale lowered)" if backed_off else ""
    print(f"{step:3d} loss {loss:.5f} grime {book['grime']:.1f} scale 2^{int(scaler.get_scale()).bit_length() - 1}{note}")


@bus.on("learned")
def harder(step, loss, backed_off):
    if step % 16 == 0:
        book["grime"] += 0.5
        bus.emit("stage", grime=book["grime"])


@bus.on("learned")
def next_tick(step, loss, backed_off):
    bus.emit("tick", step=step + 1) if step < LAST else bus.emit("stop")


@bus.on("stage")
def announce(grime):
    print(f"--- next stage, grime {grime:.1f}")


@bus.on("stop")
def goodbye():
    print(f"done, {book['skipped']} steps skipped")


bus.emit("tick", step=1)
bus.run()
