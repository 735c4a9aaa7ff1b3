# Forecast the stage of a river at nine weirs from an hour of logger rows.
#
# Loggers write CSV (epoch seconds, stage in m, battery in V).  Windows are cut by a small
# pool of threads; the main thread takes finished batches from a bounded queue, in order.
import csv
import math
import os
import queue
import random
import tempfile
import threading
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
random.seed(5)
torch.set_num_threads(1)
WINDOW, BATCH, WORKERS, DEPTH = 12, 8, 3, 4


def write_station(path, k, repeat=None):
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["epoch", "stage_m", "battery_v"])
        stage = 0.8 + 0.05 * k
        for i in range(330):
            stage += 0.01 * math.sin(i / 9 + k) + random.gauss(0, 0.003)
            row = [1700000000 + 300 * i, f"{stage:.4f}", f"{12.6 - i * 0.001:.3f}"]
            out.writerow(row)
            if i == repeat:        # the modem lost the acknowledgement, the logger sent the row again
                out.writerow(row)


def read_station(path):
    with open(path, newline="") as f:
        rows = [(int(r["epoch"]) - 1700000000, float(r["stage_m"]), float(r["battery_v"])) for r in csv.DictReader(f)]
    return torch.tensor(rows, dtype=torch.float32)


@dataclass
class Batch:
    features: torch.Tensor
    target: torch.Tensor


def cut(table, start):
    w = table[start:start + WINDOW + 1]
    seconds, stage = w[:, 0], w[:, 1]
    slope = (stage[1:] - stage[:-1]) / (seconds[1:] - seconds[:-1])
    x = torch.stack([stage[:-1] - stage[-2], slope * 3600, w[:-1, 2] - 12.5], dim=1)
    return x[:-1], (stage[-1] - stage[-2]) * 100


class Prefetcher:
    """Batches by number in, batches in that order out."""

    def __init__(self, tables, plan):
        self.tables, self.plan = tables, plan
        self.todo = queue.Queue()
        self.done = [queue.Queue(maxsize=1) for _ in plan]
        self.room = threading.Semaphore(DEPTH)
        for n in range(len(plan)):
            self.todo.put(n)
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]
        for t in self.threads:
            t.start()

    def _work(self):
        while True:
            self.room.acquire()
            try:
                n = self.todo.get_nowait()
            except queue.Empty:
                self.room.release()
                return
            items = [cut(self.tables[s], i) for s, i in self.plan[n]]
            self.done[n].put(Batch(torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])))

    def __iter__(self):
        for slot in self.done:
            yield slot.get()
            self.room.release()
        for t in self.threads:
            t.join()


class StageNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 16, 3)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        h = F.gelu(self.conv(x.transpose(1, 2)))
        return self.head(h.mean(-1)).squeeze(-1)


with tempfile.TemporaryDirectory() as folder:
    tables = []
    for k, name in enumerate("mill abbey lock tannery ford bishop ash rectory gorse".split()):
        path = os.path.join(folder, name + ".csv")
        write_station(path, k, repeat=71 if name == "abbey" else None)
        tables.append(read_station(path))

# one pass over windows that do not overlap
plan_rng = random.Random(8)
grid = [(s, i) for s in range(len(tables)) for i in range(0, 330 - WINDOW, WINDOW + 1)]
plan_rng.shuffle(grid)
plan = [grid[i:i + BATCH] for i in range(0, len(grid) - BATCH + 1, BATCH)][:28]

net = StageNet()
optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
for step, batch in enumerate(Prefetcher(tables, plan), 1):
    optimizer.zero_grad()
    loss = F.smooth_l1_loss(net(batch.features), batch.target)
    loss.backward()
    optimizer.step()
    print(f"step {step:2d} loss {loss.item():.6f}")
print("sum of weights", sum(p.sum().item() for p in net.parameters()))
