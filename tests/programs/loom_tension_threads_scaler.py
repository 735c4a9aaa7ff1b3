import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

# Warp tension of six looms. One thread per loom cuts windows from its own record into its own queue, the trainer
# takes from the queues in turn (so the order is fixed, whichever thread is quick).
LOOMS, WINDOW, ROWS, STEPS = 6, 32, 4, 42
torch.set_num_threads(1)


def record(loom):
    g = torch.Generator().manual_seed(500 + loom)
    t = torch.arange(1200) / 20
    x = torch.sin(t * (1 + 0.2 * loom)) + 0.3 * torch.sin(7 * t) + 0.1 * torch.randn(1200, generator=g)
    breaks = torch.randint(100, 1100, (3,), generator=g)
    for b in breaks.tolist():
        x[b:b + 15] = float("-inf")       # the thread broke: the logger writes -inf until it is knotted
    return x


class Cutter(threading.Thread):
    def __init__(self, loom, stop):
        super().__init__(daemon=True, name=f"loom-{loom}")
        self.loom, self.stop = loom, stop
        self.out = queue.Queue(maxsize=3)

    def run(self):
        g = torch.Generator().manual_seed(900 + self.loom)
        x = record(self.loom)
        while not self.stop.is_set():
            at = torch.randint(len(x) - WINDOW - 1, (ROWS,), generator=g)
            rows = torch.stack([x[a:a + WINDOW + 1] for a in at.tolist()])
            while not self.stop.is_set():
                try:
                    self.out.put(rows, timeout=0.1)
                    break
                except queue.Full:
                    pass


class Tension(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.lift = nn.Conv1d(2, width, 5, padding=2)
        self.deep = nn.Conv1d(width, width, 5, padding=4, dilation=2)
        self.out = nn.Linear(width * WINDOW, 2)

    def forward(self, window):
        broken = torch.isinf(window)
        clean = window.masked_fill(broken, 0.0)
        x = torch.stack([clean, broken.float()], 1)
        x = F.gelu(self.deep(F.gelu(self.lift(x))))
        return self.out(x.flatten(1))


def likelihood(out, target):
    mean, log_sigma = out.float().unbind(1)
    log_sigma = log_sigma.clamp(-4, 3)
    holds = torch.isfinite(target)
    z = (torch.where(holds, target, mean.detach()) - mean) / log_sigma.exp()
    nll = 0.5 * z.square() + log_sigma               # without the constant: below zero when it is sure
    return (nll * holds).sum() / holds.sum().clamp(min=1)


def main():
    torch.manual_seed(33)
    stop = threading.Event()
    cutters = [Cutter(k, stop) for k in range(LOOMS)]
    for c in cutters:
        c.start()
    model = Tension()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=15)
    try:
        for step in range(1, STEPS + 1):
            rows = torch.cat([c.out.get() for c in cutters])
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(rows[:, :-1])
            loss = likelihood(out, rows[:, -1])
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            print(f"step {step} nll {loss.item():.6f} raw norm {norm.item():.5f} lowest {rows.min().item()} "
                  f"scale {scaler.get_scale():.0f}", flush=True)
    finally:
        stop.set()
        for c in cutters:
            c.join()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
