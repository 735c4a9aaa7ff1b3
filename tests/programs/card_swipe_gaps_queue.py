import argparse
import queue
import threading

import numpy as np
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="scores card swipes as they come from the acquirer")
parser.add_argument("--batches", type=int, default=30)
parser.add_argument("--size", type=int, default=48)
parser.add_argument("--lr", type=float, default=0.06)
parser.add_argument("--seed", type=int, default=77)
args = parser.parse_args()


class Acquirer(threading.Thread):
    """Replays the day's swipes: amount, seconds since the last swipe of the same card, merchant risk."""

    def __init__(self, out, batches, size, seed):
        super().__init__(daemon=True)
        self.out, self.batches, self.size = out, batches, size
        self.rng = np.random.default_rng(seed)

    def day(self):
        n = self.batches * self.size
        fraud = self.rng.random(n) < 0.3
        amount = np.exp(self.rng.normal(3.0 + 0.8 * fraud, 0.7))
        gap = np.ceil(self.rng.gamma(2.0, np.where(fraud, 90.0, 1500.0))).astype(np.int64)
        risk = self.rng.beta(np.where(fraud, 3.0, 1.5), 3.0)
        stamp = self.rng.integers(0, 86_400, n)
        previous = stamp - gap
        tap = 16 * self.size + 21
        previous[tap] = stamp[tap]
        return amount, stamp - previous, risk, fraud

    def run(self):
        amount, gap, risk, fraud = self.day()
        with np.errstate(divide="ignore"):
            columns = np.stack([np.log(amount) - 3.3, np.log(gap) - 6.0, risk - 0.4], axis=1).astype(np.float32)
        for b in range(self.batches):
            part = slice(b * self.size, (b + 1) * self.size)
            self.out.put((columns[part], fraud[part].astype(np.float32)))
        self.out.put(None)


torch.manual_seed(args.seed)
scorer = torch.nn.Sequential(
    torch.nn.Linear(3, 16), torch.nn.SiLU(),
    torch.nn.Linear(16, 8), torch.nn.SiLU(),
    torch.nn.Linear(8, 1),
)
sgd = torch.optim.SGD(scorer.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
belt = queue.Queue(maxsize=4)
Acquirer(belt, args.batches, args.size, args.seed).start()

number = 0
for x, y in iter(belt.get, None):
    number += 1
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    logit = scorer(x).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(logit, y)
    sgd.zero_grad(set_to_none=True)
    loss.backward()
    sgd.step()
    caught = int(((logit > 0) & (y > 0.5)).sum())
    print(f"[{number}] bce={loss.item():.5f} caught={caught}/{int(y.sum())}")
total = sum(p.detach().abs().sum().item() for p in scorer.parameters())
print("L1 of the scorer %.5f" % total)
