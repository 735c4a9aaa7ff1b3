"""Spiking net that tells from 16 touch sensors on a gripper which of 4 objects is held."""
import torch
import torch.nn as nn


class Spike(torch.autograd.Function):
    """step function forward, slope of a logistic curve backward"""

    @staticmethod
    def forward(ctx, above, sharpness):
        ctx.save_for_backward(above)
        ctx.sharpness = sharpness
        return (above > 0).to(above.dtype)

    @staticmethod
    def backward(ctx, upstream):
        above, = ctx.saved_tensors
        k = ctx.sharpness
        e = torch.exp(k * above)
        return upstream * k * e / (1 + e) ** 2, None


class LeakyCells(nn.Module):
    def __init__(self, n_in, n_out, leak=0.85, threshold=1.0, sharpness=3.0):
        super().__init__()
        self.synapses = nn.Linear(n_in, n_out)
        self.leak, self.threshold, self.sharpness = leak, threshold, sharpness

    def forward(self, spikes_in):
        v = torch.zeros(spikes_in.shape[1], self.synapses.out_features)
        out = []
        for now in spikes_in:
            v = self.leak * v + self.synapses(now)
            s = Spike.apply(v - self.threshold, self.sharpness)
            v = v - self.threshold * s.detach()
            out.append(s)
        return torch.stack(out)


class GripNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.skin = LeakyCells(16, 32)
        self.cortex = LeakyCells(32, 16)
        self.guess = nn.Linear(16, 4)

    def forward(self, pressure):
        return self.guess(self.cortex(self.skin(pressure)).mean(dim=0))


class Bench:
    def __init__(self, seed=30):
        self.g = torch.Generator().manual_seed(seed)
        self.shapes = torch.rand(4, 16, generator=self.g) * 1.5

    def grasp(self, attempt, n=12, ticks=14):
        label = torch.randint(4, (n,), generator=self.g)
        ramp = torch.linspace(0.2, 1.0, ticks)[:, None, None]
        press = ramp * self.shapes[label][None] + 0.1 * torch.randn(ticks, n, 16, generator=self.g)
        if attempt in (13, 22):
            press[:, :3] *= 60.0        # closed at full motor current
        return press, label


def main():
    torch.manual_seed(30)
    bench, net = Bench(), GripNet()
    opt = torch.optim.Adamax(net.parameters(), lr=0.02)
    criterion = nn.CrossEntropyLoss()
    attempt = 0
    while attempt < 34:
        attempt += 1
        press, label = bench.grasp(attempt)
        opt.zero_grad()
        scores = net(press)
        loss = criterion(scores, label)
        loss.backward()
        opt.step()
        right = (scores.argmax(1) == label).float().mean().item()
        print("attempt %2d  loss %.4f  right %.2f" % (attempt, loss.item(), right))
    print("sum of squares of all weights %.6f" % sum((p.detach() ** 2).sum().item() for p in net.parameters()))


main()
