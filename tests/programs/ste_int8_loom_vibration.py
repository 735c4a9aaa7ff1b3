"""Quantisation-aware fine-tuning of a loom-vibration classifier: int8 activations per window, int8 weights per row,
straight-through estimators as own autograd functions. First a few float steps ("pretraining"), then QAT."""
import torch
from torch import nn
from torch.autograd import Function

QMAX = 127


class FakeQuant(Function):
    """Symmetric fake quantisation over the last dimension; gradient passes straight through."""

    @staticmethod
    def forward(ctx, x):
        scale = x.abs().amax(dim=-1, keepdim=True) / QMAX
        levels = torch.round(x / scale)
        levels = levels.clamp(-QMAX, QMAX)
        return levels * scale

    @staticmethod
    def backward(ctx, grad):
        return grad


class QLinear(nn.Linear):
    enabled = False

    def forward(self, x):
        w = self.weight
        if QLinear.enabled:
            x, w = FakeQuant.apply(x), FakeQuant.apply(w)
        return nn.functional.linear(x, w, self.bias)


class LoomNet(nn.Module):
    def __init__(self, taps=32, classes=4):
        super().__init__()
        self.first = QLinear(taps, 40)
        self.second = QLinear(40, 24)
        self.last = QLinear(24, classes)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = torch.tanh(self.second(h))
        return self.last(h)


class Recorder:
    """Windows of the accelerometer on four looms. A loom that has stopped gives a flat line, once detrended."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.t = torch.arange(32) / 32

    def window(self, loom, stopped):
        if stopped:
            raw = torch.full((32,), 0.5)             # one g/2 of constant tilt
        else:
            phase = torch.rand((), generator=self.g)
            raw = torch.sin(6.2832 * ((loom + 1) * self.t + phase)) + 0.3 * torch.randn(32, generator=self.g)
        return raw - raw.mean()

    def batch(self, step, size=16):
        looms = torch.randint(0, 4, (size,), generator=self.g)
        x = torch.stack([self.window(int(k), step in (4, 29) and i == 3) for i, k in enumerate(looms)])
        return x, looms


def fit(steps=46, start_qat=12):
    torch.manual_seed(60)
    net, rec = LoomNet(), Recorder(2)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.8, nesterov=True)
    for step in range(1, steps + 1):
        if step == start_qat:
            QLinear.enabled = True
            for group in opt.param_groups:
                group["lr"] *= 0.25                  # gentle once the grid is in
        x, y = rec.batch(step)
        logits = net(x)
        loss = loss_fn(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc = (logits.argmax(-1) == y).float().mean().item()
        print(f"[{'int8' if QLinear.enabled else 'fp32'}] {step:02d} ce={loss.item():.6f} acc={acc:.3f}")
    return net


if __name__ == "__main__":
    trained = fit()
    print("l =", sum(p.double().sum().item() for p in trained.parameters()))
