"""Apple grades from a sorting line, labelled by graders of whom some guess. Rows of a batch are weighed by whether a look-ahead step
on them would help on a small trusted set (learning to reweight, as a bi-level problem with functional parameters)."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad

FEATURES, GRADES = 8, 4


def make_apples(n, wrong, g):
    x = torch.randn(n, FEATURES, generator=g)
    w = torch.linspace(-1, 1, FEATURES * GRADES).view(FEATURES, GRADES).sin() * 3
    w = w[:, torch.tensor([2, 0, 3, 1])] + 0.8 * torch.eye(FEATURES)[:, :GRADES]
    y = (x @ w + 0.3 * torch.randn(n, GRADES, generator=g)).argmax(1)
    guessed = torch.rand(n, generator=g) < wrong
    y[guessed] = torch.randint(GRADES, (int(guessed.sum()),), generator=g)
    return x, y


def build():
    return nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU(), nn.Linear(24, GRADES))


class Reweighter:
    def __init__(self, model, look_ahead):
        self.model, self.look_ahead = model, look_ahead

    def loss_rows(self, params, x, y):
        return F.cross_entropy(functional_call(self.model, params, (x,)), y, reduction="none")

    def trusted_after(self, eps, params, x, y, tx, ty):
        """trusted loss after one inner step whose rows are weighed by eps"""
        inner = grad(lambda p: (eps * self.loss_rows(p, x, y)).sum())(params)
        moved = {k: params[k] - self.look_ahead * inner[k] for k in params}
        return self.loss_rows(moved, tx, ty).mean()

    def weights(self, x, y, tx, ty):
        params = {k: p.detach() for k, p in self.model.named_parameters()}
        hyper = grad(self.trusted_after)(torch.zeros(len(x)), params, x, y, tx, ty)
        helpful = torch.clamp(-hyper, min=0)
        return helpful / helpful.sum()


def main():
    torch.manual_seed(51)
    g = torch.Generator().manual_seed(52)
    x, y = make_apples(1200, 0.45, g)
    tx, ty = make_apples(24, 0.0, g)
    model = build()
    reweighter = Reweighter(model, look_ahead=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.8)
    batch = 4                                # the line hands over crates of four
    for step in range(1, 61):
        rows = torch.randint(len(x), (batch,), generator=g)
        weights = reweighter.weights(x[rows], y[rows], tx, ty)
        params = dict(model.named_parameters())
        loss = (weights * reweighter.loss_rows(params, x[rows], y[rows])).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            right = (model(tx).argmax(1) == ty).float().mean()
        print(f"step {step} loss {loss.item():.6f} heaviest {weights.max().item():.4f} trusted {right.item():.3f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
