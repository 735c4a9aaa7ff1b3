"""Fingerspelling to letters with CTC. Clips come from a webcam corpus, and some were trimmed too hard.

A clip that has fewer frames than its word needs has no alignment, its CTC loss is infinite. We report those (column
"impossible") and let zero_infinity drop them from what is trained on. The rest is summed, not averaged, as in our paper.
"""
import collections
import string

import torch
from torch import nn

LETTERS = "-" + string.ascii_lowercase            # 0 is the blank
NAMES = "anna otto lee bill hannah kim ross emma jeff noor ada will tess amy bobby max".split()
Clip = collections.namedtuple("Clip", "frames word n_frames")


class Corpus:
    """Hand keypoints (21 x 2 = 42 numbers a frame), each letter a noisy posture held for some frames."""

    def __init__(self, seed=2010):
        self.g = torch.Generator().manual_seed(seed)
        self.posture = torch.randn(len(LETTERS), 42, generator=self.g)

    def _int(self, lo, hi):
        return int(torch.randint(lo, hi, (1,), generator=self.g))

    def clip(self):
        word = NAMES[self._int(0, len(NAMES))]
        frames = []
        for ch in word:
            hold = self.posture[LETTERS.index(ch)].repeat(self._int(2, 5), 1)
            frames += [hold, torch.zeros(1, 42)]
        x = torch.cat(frames)
        if self._int(0, 9) == 0:                   # trimmed too hard
            x = x[: max(2, len(word) - 1)]
        return Clip(x + 0.2 * torch.randn(x.shape, generator=self.g), word, len(x))

    def batch(self, n):
        clips = [self.clip() for _ in range(n)]
        x = nn.utils.rnn.pad_sequence([c.frames for c in clips])
        y = torch.tensor([LETTERS.index(ch) for c in clips for ch in c.word])
        return x, y, torch.tensor([c.n_frames for c in clips]), torch.tensor([len(c.word) for c in clips])


class Speller(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.pose = nn.Sequential(nn.Linear(42, hidden), nn.ReLU())
        self.time = nn.LSTM(hidden, hidden, bidirectional=True)
        self.head = nn.Linear(2 * hidden, len(LETTERS))

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.pose(x), lengths, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.time(packed)[0])
        return self.head(h).log_softmax(-1)


def warm_then_inverse_sqrt(step, warm=8):
    step += 1
    return min(step / warm, (warm / step) ** 0.5)


def greedy(log_p, n):
    path = log_p[:n].argmax(-1).tolist()
    return "".join(LETTERS[a] for i, a in enumerate(path) if a and (i == 0 or path[i - 1] != a))


def main(steps=40):
    torch.manual_seed(1)
    corpus, net = Corpus(), Speller()
    opt = torch.optim.Adam(net.parameters(), lr=8e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, warm_then_inverse_sqrt)
    trained_on = nn.CTCLoss(reduction="sum", zero_infinity=True)
    inspect = nn.CTCLoss(reduction="none")
    for step in range(1, steps + 1):
        x, y, n_x, n_y = corpus.batch(6)
        log_p = net(x, n_x)
        loss = trained_on(log_p, y, n_x, n_y)
        with torch.no_grad():
            each = inspect(log_p, y, n_x, n_y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step()
        print(f"{step:3d} sum {loss.item():11.5f} mean as scored {each.mean().item():9.4f} impossible {int(each.isinf().sum())} "
              f"first '{greedy(log_p[:, 0], int(n_x[0]))}'")
    print("weights", f"{sum(p.detach().double().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    main()
