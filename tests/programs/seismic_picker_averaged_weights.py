"""P-phase picker on single-station windows, with a slow average of the weights that is blended back in now and then."""
import torch
import torch.nn as nn

WINDOW = 96


def windows(n, rng):
    """ground motion: noise, then from the onset on a decaying wavelet; the target is a hat around the onset"""
    at = torch.randint(20, 70, (n,), generator=rng)
    axis = torch.arange(WINDOW).expand(n, -1)
    since = (axis - at[:, None]).float()
    wave = torch.where(since >= 0, torch.exp(-since.clamp(min=0) / 15) * torch.sin(since * 0.9), torch.zeros(()))
    trace = 0.15 * torch.randn(n, WINDOW, generator=rng) + wave
    hat = (1 - since.abs() / 5).clamp(min=0)
    return trace.unsqueeze(1), hat / hat.sum(1, keepdim=True)


class Picker(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.listen = nn.Conv1d(1, width, 9, padding=4)
        self.think = nn.Conv1d(width, width, 9, padding=4)
        self.pick = nn.Conv1d(width, 1, 1)

    def forward(self, trace):
        h = torch.relu(self.listen(trace))
        h = torch.relu(self.think(h)) + h
        return self.pick(h).squeeze(1).log_softmax(-1)


class SlowAverage:
    def __init__(self, net, keep=0.9):
        self.net, self.keep = net, keep
        self.slow = [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def follow(self):
        for s, p in zip(self.slow, self.net.parameters()):
            s.lerp_(p, 1 - self.keep)

    @torch.no_grad()
    def blend_back(self, share=0.5):
        for s, p in zip(self.slow, self.net.parameters()):
            p.lerp_(s, share)


class Trainer:
    patience = 3

    def __init__(self):
        torch.manual_seed(1906)
        self.rng = torch.Generator().manual_seed(418)
        self.net = Picker()
        self.average = SlowAverage(self.net)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.2, momentum=0.8)
        self.best, self.waited = 1e9, 0

    def one(self, i):
        trace, hat = windows(12, self.rng)
        logp = self.net(trace)
        loss = -(hat * logp).sum(-1).mean()
        value = loss.item()
        self.waited = 0 if value < self.best else self.waited + 1
        self.best = min(self.best, value)
        self.opt.zero_grad()
        if self.waited >= self.patience:
            self.average.blend_back()
            self.waited = 0
        loss.backward()
        self.opt.step()
        self.average.follow()
        off = (logp.argmax(-1) - hat.argmax(-1)).abs().float().mean().item()
        print(f"[{i:02d}] cross entropy {value:.4f}  picks off by {off:.1f} samples")

    def run(self, n=36):
        for i in range(1, n + 1):
            self.one(i)
        print("sum of absolute weights", sum(p.abs().sum().item() for p in self.net.parameters()))


Trainer().run()
