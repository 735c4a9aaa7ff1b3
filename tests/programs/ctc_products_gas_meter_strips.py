"""Reads the counter of a gas meter from a strip of columns, as one reads speech from frames.

Strips get longer as training goes on: 16 columns, then 30, then the full scan of 150.
"""
import torch
import torch.nn as nn

DIGITS, BLANK, HEIGHT = 10, 10, 12
FULL = 150


def glyphs():
    g = torch.Generator().manual_seed(4)
    return torch.rand(DIGITS, 3, HEIGHT, generator=g).gt(0.5).float()


GLYPHS = glyphs()


def strip(columns, digits):
    reading = torch.randint(0, DIGITS, (digits,))
    picture = torch.rand(columns, HEIGHT) * 0.3
    cell = columns // digits
    for i, d in enumerate(reading):
        at = i * cell + int(torch.randint(0, cell - 2, (1,)))
        picture[at:at + 3] += GLYPHS[d]
    return picture, reading


def batch_of(n, columns, digits):
    pairs = [strip(columns, digits) for _ in range(n)]
    return torch.stack([p for p, _ in pairs]), torch.stack([r for _, r in pairs])


class ColumnReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(HEIGHT, 24, 5, padding=2)
        self.rnn = nn.GRU(24, 16, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, DIGITS + 1)

    def forward(self, picture):
        h = self.conv(picture.transpose(1, 2)).relu().transpose(1, 2)
        return self.out(self.rnn(h)[0]).softmax(-1)


class PathSum(nn.Module):
    """Probability of a reading: the sum over all ways to spread its digits on the columns."""

    def forward(self, probs, reading):
        n, columns, _ = probs.shape
        states = torch.full((n, 2 * reading.shape[1] + 1), BLANK)
        states[:, 1::2] = reading
        skip = torch.zeros(states.shape)
        skip[:, 3::2] = (reading[:, 1:] != reading[:, :-1]).float()
        emit = probs.gather(2, states[:, None].expand(-1, columns, -1))
        alpha = emit[:, 0] * (torch.arange(states.shape[1]) < 2)
        for t in range(1, columns):
            one = nn.functional.pad(alpha, (1, 0))[:, :-1]
            two = nn.functional.pad(alpha, (2, 0))[:, :-2]
            alpha = (alpha + one + skip * two) * emit[:, t]
        total = alpha[:, -1] + alpha[:, -2]
        return -total.log().mean() / reading.shape[1]


def stage(step):
    if step <= 8:
        return 16, 3
    return (30, 4) if step <= 17 else (FULL, 6)


def fit(steps=28):
    torch.manual_seed(31)
    reader, criterion = ColumnReader(), PathSum()
    opt = torch.optim.NAdam(reader.parameters(), lr=1.5e-3)
    for step in range(1, steps + 1):
        columns, digits = stage(step)
        picture, reading = batch_of(8, columns, digits)
        loss = criterion(reader(picture), reading)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 5.0)
        opt.step()
        print("step", step, "columns", columns, "loss per digit", round(loss.item(), 4))
    return reader


if __name__ == "__main__":
    model = fit()
    print("sum of |w|:", sum(p.detach().abs().sum().item() for p in model.parameters()))
