"""Stock origin of herring from otolith spectra, relative to the day's blank.

Signed square root after the projection, as in bilinear CNNs, since the counts are Poisson-like.
"""
import torch
from torch import nn


class SignedRoot(torch.autograd.Function):
    """sign(x) * sqrt(|x|) with a backward of our own: autograd's version keeps abs, sign and sqrt alive."""

    @staticmethod
    def forward(ctx, x):
        root = x.abs().sqrt()
        ctx.save_for_backward(root)
        return x.sign() * root

    @staticmethod
    def backward(ctx, grad_out):
        (root,) = ctx.saved_tensors
        return 0.5 * grad_out / root


class OriginNet(nn.Module):
    def __init__(self, lines=20, stocks=4):
        super().__init__()
        self.project = nn.Linear(lines, 16, bias=False)
        self.classify = nn.Linear(16, stocks)

    def forward(self, spectrum, blank):
        z = self.project(spectrum - blank)
        z = SignedRoot.apply(z)
        z = z / (z.norm(dim=-1, keepdim=True) + 1e-6).detach()
        return self.classify(z)


def lab_days(n_days, lines=20, stocks=4):
    signature = torch.randn(stocks, lines).abs()
    for day in range(1, n_days + 1):
        origin = torch.randint(stocks, (16,))
        blank = 0.05 * torch.rand(lines)
        counts = signature[origin] * (0.8 + 0.4 * torch.rand(16, 1)) + 0.1 * torch.randn(16, lines) + blank
        tray = torch.ones(16, dtype=torch.bool)
        if day == 14:
            # the autosampler drew from the blank vial a second time in position 9
            counts[9] = blank
        yield counts, blank, origin, tray


class Run:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.net = OriginNet()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.01, weight_decay=1e-3)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
        self.log = []

    def fit(self, days):
        for counts, blank, origin, tray in lab_days(days):
            logits = self.net(counts, blank)
            loss = self.criterion(logits[tray], origin[tray])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            right = (logits.argmax(-1) == origin).sum().item()
            self.log.append(loss.item())
            print("day %2d  loss %.6f  right %2d/16" % (len(self.log), loss.item(), right))

    def checksum(self):
        return sum(p.detach().double().sum().item() for p in self.net.parameters())


if __name__ == "__main__":
    run = Run(seed=1903)
    run.fit(40)
    print("checksum", run.checksum())
