"""Thimble hallmark classifier; weight-normalised MLP, rolls back to the best weights when it gets worse."""
import io
import logging
import sys

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

logging.basicConfig(stream=sys.stdout, format="%(name)s | %(message)s", level=logging.INFO)
log = logging.getLogger("thimbles")
torch.manual_seed(55)
torch.set_num_threads(1)


class Centered(nn.Module):
    """Parametrization: rows sum to zero (ignores the overall brightness)."""

    def forward(self, w):
        return w - w.mean(dim=1, keepdim=True)

    def right_inverse(self, w):
        return w


def make_model():
    first = nn.Linear(14, 32)
    parametrize.register_parametrization(first, "weight", Centered())
    return nn.Sequential(first, nn.ReLU(), weight_norm(nn.Linear(32, 32)), nn.ReLU(),
                         spectral_norm(nn.Linear(32, 5)))


class BestKeeper:
    def __init__(self):
        self.best, self.blob = float("inf"), None

    def offer(self, value, model):
        if value < self.best:
            self.best = value
            buf = io.BytesIO()
            torch.save(model.state_dict(), buf)
            self.blob = buf.getvalue()
            return True
        return False

    def restore(self, model):
        model.load_state_dict(torch.load(io.BytesIO(self.blob)))


class Exporter:
    """Writes a plain copy for the museum's scanner, which knows no parametrizations."""

    def __init__(self):
        self.sizes = []

    def __call__(self, model):
        plain = model.eval()
        for layer in plain:
            if parametrize.is_parametrized(layer):
                parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
        buf = io.BytesIO()
        torch.save(plain.state_dict(), buf)
        self.sizes.append(len(plain.state_dict()))
        model.train()


def hallmarks(n):
    g = torch.Generator().manual_seed(1)
    y = torch.randint(0, 5, (n,), generator=g)
    x = torch.randn(5, 14, generator=g)[y] + 1.1 * torch.randn(n, 14, generator=g)
    return x, y


x, y = hallmarks(700)
train, val = slice(0, 600), slice(600, 700)
model, keeper, export = make_model(), BestKeeper(), Exporter()
opt = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()
g = torch.Generator().manual_seed(2)

for step in range(1, 41):
    idx = torch.randint(0, 600, (25,), generator=g)
    loss = loss_fn(model(x[train][idx]), y[train][idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        v = loss_fn(model(x[val]), y[val]).item()
    improved = keeper.offer(v, model)
    log.info("step %2d loss %.5f val %.5f%s", step, loss.item(), v, " *" if improved else "")
    if step == 16:
        export(model)
        log.info("exported %d tensors", export.sizes[-1])
        # optimizer holds the old leaves, so take the new ones; warm restart with a high rate
        opt = torch.optim.SGD(model.parameters(), lr=1.2, momentum=0.9)
    if step % 9 == 0 and not improved:
        log.info("step %2d back to %.5f", step, keeper.best)
        keeper.restore(model)
