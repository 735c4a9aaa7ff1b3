"""Classify brick bonds (stretcher, header, English, Flemish, ...) from joint positions.

A little engine with callbacks; the curriculum makes the walls harder, so the loss is meant to rise at each new level.
Float16 with a loss scaler that starts too high on purpose: the first updates overflow and are skipped.
"""
import torch
import torch.nn as nn

LEVELS = [(0.00, 2), (0.10, 3), (0.25, 5), (0.45, 6)]     # noise of the mason, number of bonds in play
COURSES, BRICKS = 6, 8


class Callback:
    def started(self, engine): ...
    def level_due(self, engine): ...
    def before_batch(self, engine): ...
    def after_backward(self, engine): ...
    def after_batch(self, engine): ...
    def finished(self, engine): ...


class Curriculum(Callback):
    def __init__(self, every):
        self.every = every

    def before_batch(self, engine):
        level = min(engine.step // self.every, len(LEVELS) - 1)
        if level != engine.level:
            engine.level = level
            engine.emit("level_due")


class NewRows(Callback):
    """Rows of bonds not in play stay frozen; those that come into play start again from small weights."""

    def started(self, engine):
        self.known = LEVELS[0][1]

    def level_due(self, engine):
        now = LEVELS[engine.level][1]
        with torch.no_grad():
            engine.model.head.weight[self.known:now].normal_(0, 0.02)
            engine.model.head.bias[self.known:now].zero_()
        self.known = now


class Report(Callback):
    def __init__(self):
        self.best = float("inf")

    def after_batch(self, engine):
        per_class = engine.hits / engine.seen              # 0 / 0 = NaN for bonds that are not in play yet
        self.best = min(self.best, engine.loss)
        print(f"{engine.step + 1:02d} level {engine.level} scale 2^{int(torch.tensor(engine.scaler.get_scale()).log2())} "
              f"loss {engine.loss:.6f} worst-bond {per_class.min().item():.3f}", flush=True)

    def finished(self, engine):
        print(f"weights {sum(p.detach().abs().sum().item() for p in engine.model.parameters()):.4f}", flush=True)


class BondNet(nn.Module):
    def __init__(self, bonds=6, width=64):
        super().__init__()
        self.course = nn.Sequential(nn.Linear(BRICKS, width), nn.ReLU())
        self.wall = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, bonds)

    def forward(self, joints, bonds):
        h = self.course(joints)
        with torch.autocast("cpu", enabled=False):
            h, _ = self.wall(h.float())
        logits = self.head(h[:, -1])
        out_of_play = torch.arange(logits.shape[-1]) >= bonds
        return logits.masked_fill(out_of_play, float("-inf"))


class Engine:
    def __init__(self, model, callbacks, seed):
        self.model, self.callbacks = model, callbacks
        self.rng = torch.Generator().manual_seed(seed)
        self.patterns = torch.randint(0, 2, (6, COURSES, BRICKS), generator=self.rng).float()
        self.opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 21, growth_interval=15)
        self.step, self.level, self.loss = 0, 0, 0.0

    def emit(self, event):
        for c in self.callbacks:
            getattr(c, event)(self)

    def walls(self, n=64):
        noise, bonds = LEVELS[self.level]
        y = torch.randint(0, bonds, (n,), generator=self.rng)
        x = self.patterns[y] + noise * 2 * torch.randn(n, COURSES, BRICKS, generator=self.rng)
        return x, y, bonds

    def run(self, steps):
        self.emit("started")
        for self.step in range(steps):
            self.emit("before_batch")
            x, y, bonds = self.walls()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = self.model(x, bonds)
            loss = nn.functional.cross_entropy(logits.float(), y)
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            self.emit("after_backward")
            self.scaler.step(self.opt)
            self.scaler.update()
            self.loss = loss.item()
            self.seen = torch.bincount(y, minlength=6).float()
            self.hits = torch.bincount(y[logits.argmax(1) == y], minlength=6).float()
            self.emit("after_batch")
        self.emit("finished")


if __name__ == "__main__":
    torch.manual_seed(64)
    Engine(BondNet(), [Curriculum(every=15), NewRows(), Report()], seed=65).run(60)
