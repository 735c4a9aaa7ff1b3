import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(404)
N_MEL, N_FRAMES, DIGITS = 16, 24, 10
templates = torch.randn(DIGITS, N_MEL, 4)


def utterances(n, dialect):
    y = torch.randint(DIGITS, (n,))
    x = F.interpolate(templates[y], size=N_FRAMES, mode="linear", align_corners=True)
    if dialect == "island":
        x = torch.roll(x, 2, dims=1) * 0.8
    return x + 0.4 * torch.randn_like(x), y


class LowRank(nn.Module):
    """adds scale * up(down(x)) to a linear layer that is already there"""

    def __init__(self, d_in, d_out, rank=4, alpha=8):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, d_in) / d_in ** 0.5)
        self.up = nn.Parameter(torch.zeros(d_out, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.scale * F.linear(F.linear(x, self.down), self.up)


class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(N_MEL, 24, 5, padding=2)
        self.rnn = nn.GRU(24, 24, batch_first=True)
        self.dense = nn.Linear(24, 24)
        self.out = nn.Linear(24, DIGITS)
        self.plugins = nn.ModuleDict({"island": LowRank(24, 24)})

    def forward(self, x, dialect):
        h = torch.tanh(self.front(x)).transpose(1, 2)
        h = self.rnn(h)[0].mean(1)
        z = self.dense(h)
        if dialect in self.plugins:
            z = z + self.plugins[dialect](h)
        return self.out(torch.tanh(z))


net = DigitNet()
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03, eps=0.0)
plan = ["mainland"] * 15 + ["island"] * 18

for k, dialect in enumerate(plan, start=1):
    x, y = utterances(20, dialect)
    optimizer.zero_grad(set_to_none=True)
    logits = net(x, dialect)
    loss = F.cross_entropy(logits, y, label_smoothing=0.05)
    loss.backward()
    optimizer.step()
    acc = (logits.argmax(-1) == y).float().mean()
    print("%3d  %-9s loss %.5f  correct %.2f" % (k, dialect, loss.item(), acc.item()))

total = sum(p.detach().abs().sum() for p in net.parameters())
print("total of the absolute weights %.6f" % total.item())
