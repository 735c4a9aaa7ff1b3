"""One small regressor per crusher, all trained at once with vmap over torch.func.grad.

Loads are in newtons, so the summed squared error starts around 1e15. Each crusher has its own step length found by
a crude trust rule (halve after a worse loss, with the old weights put back; the losses are allowed to jump).
"""
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

FLEET = 5
torch.manual_seed(77)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 10)
        self.b = nn.Linear(10, 1)

    def forward(self, x):
        return 1e6 * self.b(torch.tanh(self.a(x))).squeeze(-1)


def belts(crusher_seed, n=40):
    g = torch.Generator().manual_seed(crusher_seed)
    x = torch.randn(n, 3, generator=g)
    y = 4e6 + 2e6 * torch.sin(x[:, 0] * (1 + crusher_seed % 3)) + 8e5 * x[:, 1] * x[:, 2]
    return x, y + 5e4 * torch.randn(n, generator=g)


class Fleet:
    def __init__(self):
        models = [Regressor() for _ in range(FLEET)]
        self.params, self.buffers = stack_module_state(models)
        self.params = {k: nn.Parameter(v.detach()) for k, v in self.params.items()}
        self.opt = torch.optim.SGD(self.params.values(), lr=1.0)  # the step lengths go into the gradients
        self.template = Regressor().to("meta")
        self.eta = torch.full((FLEET,), 3e-17 * 100)
        self.last = torch.full((FLEET,), torch.inf)
        self.kept = {k: v.detach().clone() for k, v in self.params.items()}
        self.step_fn = vmap(grad_and_value(self.sse), in_dims=(0, 0, 0))

    def sse(self, params, x, y):
        pred = functional_call(self.template, params, (x,))
        return ((pred - y) ** 2).sum()

    def update(self, x, y):
        grads, loss = self.step_fn({k: p.detach() for k, p in self.params.items()}, x, y)
        worse = loss > self.last
        self.eta = torch.where(worse, self.eta * 0.5, self.eta * 1.15)
        shape = {k: (FLEET,) + (1,) * (p.dim() - 1) for k, p in self.params.items()}
        before = {k: p.detach().clone() for k, p in self.params.items()}
        for k, p in self.params.items():
            p.grad = self.eta.view(shape[k]) * grads[k]
        self.opt.step()
        with torch.no_grad():
            for k, p in self.params.items():
                stay = worse.view(shape[k])
                p.copy_(torch.where(stay, self.kept[k], p))
                self.kept[k] = torch.where(stay, self.kept[k], before[k])
        improvement = self.last - loss  # inf in the first round
        self.last = torch.where(worse, self.last, loss)
        return loss, improvement, worse


if __name__ == "__main__":
    x, y = map(torch.stack, zip(*[belts(s) for s in range(1, FLEET + 1)]))
    fleet = Fleet()
    for r in range(1, 61):
        loss, gain, worse = fleet.update(x, y)
        if r % 3 == 1:
            print(f"round {r:02d} " + " ".join(f"{v:.5e}" for v in loss.tolist())
                  + f" | gain {gain.sum().item():.3e} put back {int(worse.sum())}")
    print("fleet sum", sum(p.double().sum().item() for p in fleet.params.values()))
