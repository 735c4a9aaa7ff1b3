# Quantisation-aware training of an alarm that listens for breaking glass (4-bit weights, 6-bit activations).
import torch
import torch.nn as nn
import torch.nn.functional as F


class RoundThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high, levels):
        ctx.save_for_backward((x >= low) & (x <= high))
        scale = (high - low) / levels
        return ((x.clamp(low, high) - low) / scale).round() * scale + low

    @staticmethod
    def backward(ctx, grad):
        inside, = ctx.saved_tensors
        return grad * inside, None, None, None


class Watcher(nn.Module):
    """Remembers the range of what passes; rounds once it is switched on."""

    def __init__(self, bits):
        super().__init__()
        self.levels = 2 ** bits - 1
        self.on = False
        self.learning = True
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def forward(self, x):
        if self.learning:
            self.low = torch.minimum(self.low, x.detach().min())
            self.high = torch.maximum(self.high, x.detach().max())
        if not self.on:
            return x
        return RoundThrough.apply(x, self.low, self.high, self.levels)


class QuantLinear(nn.Linear):
    def __init__(self, *size):
        super().__init__(*size)
        self.watch_w, self.watch_x = Watcher(4), Watcher(6)
        self.watch_w.learning = False

    def forward(self, x):
        w = self.weight
        if self.watch_w.on:
            top = w.detach().abs().max()
            self.watch_w.low, self.watch_w.high = -top, top
        return F.linear(self.watch_x(x), self.watch_w(w), self.bias)


def sounds(gen, n):
    alarm = torch.rand(n, generator=gen) < 0.4
    time = torch.linspace(0, 1, 32)
    ring = torch.exp(-4 * time) * torch.sin(2 * torch.pi * (9 + 2 * torch.rand(n, 1, generator=gen)) * time)
    hum = 0.5 * torch.sin(2 * torch.pi * (1 + 2 * torch.rand(n, 1, generator=gen)) * time)
    wave = torch.where(alarm[:, None], ring, hum) + 0.15 * torch.randn(n, 32, generator=gen)
    return wave, alarm.float()


def ranges(net):
    seen = [(m.low.item(), m.high.item()) for m in net.modules() if isinstance(m, Watcher)]
    return " ".join(f"[{a:.2f},{b:.2f}]" for a, b in seen)


def main():
    torch.manual_seed(17)
    gen = torch.Generator().manual_seed(3)
    net = nn.Sequential(QuantLinear(32, 24), nn.ReLU(), QuantLinear(24, 12), nn.ReLU(), QuantLinear(12, 1))
    watchers = [m for m in net.modules() if isinstance(m, Watcher)]
    print("before any sound", ranges(net))
    opt = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9, nesterov=True)
    for step in range(1, 37):
        if step == 13:
            for m in watchers:
                m.on = True
        if step == 25:
            for m in watchers:
                m.learning = False
            net[0].requires_grad_(False)
            net[0].weight.grad = net[0].bias.grad = None
        wave, alarm = sounds(gen, 40)
        loss = F.binary_cross_entropy_with_logits(net(wave)[:, 0], alarm)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.4f}", ranges(net) if step % 6 == 0 else "")
    print("sum of all |weights|:", sum(p.detach().abs().sum().item() for p in net.parameters()))


main()
