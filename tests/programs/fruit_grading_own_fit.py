"""Apple grading line: camera features -> commercial grade and sugar content (Brix), which few apples have."""
import math

import torch
import torch.nn.functional as F
from torch import nn

GRADES = ["extra", "class_1", "class_2", "cider"]

def make_apples(n, seed, measured_share):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 9, generator=g)
    score = 1.2 * x[:, 0] - 0.8 * x[:, 3] + 0.4 * x[:, 5] * x[:, 1]
    grade = torch.bucketize(score + 0.2 * torch.randn(n, generator=g), torch.tensor([-1.0, 0.0, 1.0]))
    brix = 12.5 + 1.1 * x[:, 1] + 0.5 * x[:, 4]
    measured = torch.rand(n, generator=g) < measured_share
    return x, grade, torch.where(measured, brix, torch.tensor(float("nan")))

class AppleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 24), nn.SiLU())
        self.grade = nn.Linear(24, len(GRADES))
        self.brix = nn.Linear(24, 1)

    def forward(self, x):
        h = self.body(x)
        return {"grade": self.grade(h), "brix": 12.0 + self.brix(h).squeeze(-1)}

def masked_huber(pred, target):
    known = ~torch.isnan(target)
    gap = F.smooth_l1_loss(pred, torch.where(known, target, pred.detach()), reduction="none")
    return (gap * known).sum() / known.sum().clamp(min=1)

def brix_error(pred, target):
    known = ~torch.isnan(target)
    return (pred - target)[known].abs().mean().item()

class Callback:
    def on_epoch_begin(self, trainer, epoch): ...
    def on_epoch_end(self, trainer, epoch, logs): ...
    def on_fit_end(self, trainer): ...

class KeepBest(Callback):
    best, weights, epoch = float("inf"), None, -1

    def on_epoch_end(self, trainer, epoch, logs):
        if logs["val_loss"] < self.best:
            self.best, self.epoch = logs["val_loss"], epoch
            self.weights = {k: v.clone() for k, v in trainer.model.state_dict().items()}

    def on_fit_end(self, trainer):
        trainer.model.load_state_dict(self.weights)
        print(f"weights of epoch {self.epoch} are kept, val_loss {self.best:.4f}")

class FreshGradeHead(Callback):
    def __init__(self, at):
        self.at = at

    def on_epoch_begin(self, trainer, epoch):
        if epoch == self.at:
            trainer.model.grade.reset_parameters()
            print("new season, grading head starts again")

class Trainer:
    def __init__(self, model):
        self.model, self.history = model, {"loss": [], "val_loss": [], "brix_mae": []}

    def compile(self, optimizer, losses, loss_weights):
        self.optimizer, self.losses, self.loss_weights = optimizer, losses, loss_weights

    def compute(self, x, targets):
        out = self.model(x)
        return sum(self.loss_weights[k] * f(out[k], targets[k]) for k, f in self.losses.items()), out

    def report(self, epoch, batch, loss, mae):
        print(f"epoch {epoch} batch {batch} loss {loss:.4f} brix_mae {mae:.3f}")

    def fit(self, data, validation, epochs, batch_size, validate_every=2, callbacks=()):
        x, grade, brix = data
        for epoch in range(epochs):
            [c.on_epoch_begin(self, epoch) for c in callbacks]
            logs = {"val_loss": math.nan}
            for b in range(0, len(x), batch_size):
                s = slice(b, b + batch_size)
                self.optimizer.zero_grad()
                loss, out = self.compute(x[s], {"grade": grade[s], "brix": brix[s]})
                loss.backward()
                self.optimizer.step()
                self.report(epoch, b // batch_size, loss.item(), brix_error(out["brix"].detach(), brix[s]))
            if epoch % validate_every == validate_every - 1:
                with torch.no_grad():
                    logs["val_loss"] = self.compute(validation[0], {"grade": validation[1], "brix": validation[2]})[0].item()
            self.history["val_loss"].append(logs["val_loss"])
            print(f"epoch {epoch} val_loss {logs['val_loss']:.4f}")
            [c.on_epoch_end(self, epoch, logs) for c in callbacks]
        [c.on_fit_end(self) for c in callbacks]

torch.manual_seed(4)
trainer = Trainer(AppleNet())
trainer.compile(torch.optim.RMSprop(trainer.model.parameters(), lr=4e-3), {"grade": F.cross_entropy, "brix": masked_huber},
                {"grade": 1.0, "brix": 0.5})
trainer.fit(make_apples(192, 1, 0.06), make_apples(96, 2, 0.5), epochs=4, batch_size=24,
            callbacks=[KeepBest(), FreshGradeHead(at=2)])
print("sum of squared weights", sum(p.detach().pow(2).sum() for p in trainer.model.parameters()).item())
