"""Bat call detector on frames of ultrasound; accumulation over four recordings per update.

The gradient is the sum over all voiced frames of a group divided by their number, so that long recordings weigh more.
"""
from contextlib import contextmanager
import torch
import torch.nn as nn
import torch.nn.functional as F

SPECIES = ("pipistrelle", "noctule", "serotine", "daubenton")


class GradAccumulator:
    def __init__(self, optimizer, every):
        self.optimizer, self.every = optimizer, every
        self.micro = self.frames = self.updates = 0
        self.total = 0.0

    @contextmanager
    def recording(self):
        self.micro += 1
        yield self
        if self.micro == self.every:
            self._apply()

    def backward(self, summed_loss, frames):
        summed_loss.backward()
        self.frames += int(frames)
        self.total += summed_loss.item()

    def _apply(self):
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(self.frames)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        mean = self.total / max(self.frames, 1)
        print(f"update {self.updates:2d} frames {self.frames:3d} nll {mean:.6f}")
        self.micro = self.frames = 0
        self.total = 0.0


class CallNet(nn.Module):
    def __init__(self, bands=16):
        super().__init__()
        self.conv = nn.Conv1d(bands, 24, 3, padding=1)
        self.norm = nn.GroupNorm(4, 24)
        self.head = nn.Conv1d(24, len(SPECIES), 1)

    def forward(self, spec):
        return self.head(F.silu(self.norm(self.conv(spec))))


def night(recordings, gen):
    """Yields spectrogram, frame labels, mask of voiced frames. Rain from recording 60 to 63: nothing calls."""
    shape = torch.randn(len(SPECIES), 16, generator=gen)
    for r in range(recordings):
        t = int(torch.randint(20, 40, (1,), generator=gen))
        who = torch.randint(0, len(SPECIES), (t,), generator=gen)
        voiced = torch.rand(t, generator=gen) < 0.4
        voiced[0] = True
        if 60 <= r < 64:
            voiced[:] = False
        spec = shape[who].T * voiced + 0.5 * torch.randn(16, t, generator=gen)
        yield spec.unsqueeze(0), who, voiced


def main():
    torch.manual_seed(31)
    net = CallNet()
    acc = GradAccumulator(torch.optim.Adam(net.parameters(), lr=5e-3), every=4)
    for spec, who, voiced in night(120, torch.Generator().manual_seed(8)):
        with acc.recording() as group:
            nll = F.cross_entropy(net(spec)[0].T, who, reduction="none")
            group.backward((nll * voiced).sum(), voiced.sum())
    print("finished, sum of weights", round(sum(p.sum().item() for p in net.parameters()), 6))


main()
