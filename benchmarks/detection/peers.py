"""The rules of others, written from their descriptions; each sees loss and gradient norm of one step after another.

Steps whose update a loss scaler discards are not shown to them: none of these rules was made for overflows.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, median, pstdev
from typing import Protocol

WINDOW = 128


class Detector(Protocol):
    def sees(self, loss: float, grad_norm: float) -> bool:
        """Is the step, next in order, one to alarm at?"""
        ...


class SixSigma:
    """OLMo-core: loss or gradient norm above mean + 6 sigma of the last 128 steps, once 64 are known.

    What is flagged is kept in the window like the rest; a NaN in the window makes every comparison false.
    """

    def __init__(self) -> None:
        self.kept = (deque[float](maxlen=WINDOW), deque[float](maxlen=WINDOW))

    def sees(self, loss: float, grad_norm: float) -> bool:
        found = False
        for kept, value in zip(self.kept, (loss, grad_norm), strict=True):
            if len(kept) >= WINDOW // 2:
                finite = all(map(math.isfinite, kept))
                found |= finite and value > fmean(kept) + 6 * pstdev(kept)
            kept.append(value)
        return found


class ZClip:
    """ZClip: z-score of the gradient norm above 2.5, mean and variance by exponential averages with 0.97.

    25 steps of warm-up; what is clipped enters the averages as clipped, the further out the nearer to the mean.
    """

    WARM_UP, ALPHA, LIMIT = 25, 0.97, 2.5

    def __init__(self) -> None:
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def sees(self, loss: float, grad_norm: float) -> bool:  # noqa: ARG002
        if len(self.first) < self.WARM_UP:
            self.first.append(grad_norm)
            self.mean, self.variance = fmean(self.first), pstdev(self.first) ** 2 if len(self.first) > 1 else 0.0
            return False
        deviation = math.sqrt(self.variance) if self.variance >= 0 else math.nan
        z = (grad_norm - self.mean) / (deviation + 1e-6)
        found = z > self.LIMIT
        value = self.mean + self.LIMIT * deviation / (z / self.LIMIT) if found else grad_norm
        self.mean = self.ALPHA * self.mean + (1 - self.ALPHA) * value
        self.variance = self.ALPHA * self.variance + (1 - self.ALPHA) * (value - self.mean) ** 2
        return found


class KillLossSpike:
    """llm-foundry: the loss is twice the running mean for more than 4 steps in a row, or half of the window is high.

    The window is the last 100 steps; high is above the largest loss of the first window, at most 10.
    """

    SIZE, PATIENCE = 100, 4

    def __init__(self) -> None:
        self.kept = deque[float](maxlen=self.SIZE)
        self.cap: float | None = None
        self.row = 0

    def sees(self, loss: float, grad_norm: float) -> bool:  # noqa: ARG002
        if len(self.kept) < self.SIZE:
            self.kept.append(loss)
            return False
        if self.cap is None:
            self.cap = min(max(self.kept), 10.0)
        self.row = self.row + 1 if loss >= 2 * fmean(self.kept) else 0
        self.kept.append(loss)
        return self.row > self.PATIENCE or sum(value > self.cap for value in self.kept) >= self.SIZE / 2


class TenTimesFirst:
    """Megatron-LM: loss or gradient norm not finite, or at 10 times the largest of the first 100 steps."""

    FIRST = 100

    def __init__(self) -> None:
        self.largest, self.known = [0.0, 0.0], 0

    def sees(self, loss: float, grad_norm: float) -> bool:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return True
        if self.known < self.FIRST:
            self.known += 1
            self.largest = [max(self.largest[0], loss), max(self.largest[1], grad_norm)]
            return False
        return loss >= 10 * self.largest[0] or grad_norm >= 10 * self.largest[1]


class MedianRule:
    """Naive: loss or gradient norm more than 8 robust deviations above the median of the last 128, or not finite."""

    def __init__(self) -> None:
        self.kept = (deque[float](maxlen=WINDOW), deque[float](maxlen=WINDOW))

    def sees(self, loss: float, grad_norm: float) -> bool:
        found = False
        for kept, value in zip(self.kept, (loss, grad_norm), strict=True):
            if not math.isfinite(value):
                found = True
                continue
            if len(kept) >= WINDOW // 2:
                middle = median(kept)
                found |= value - middle > 8 * 1.4826 * median(abs(one - middle) for one in kept)
            kept.append(value)
        return found


PEERS: dict[str, type[Detector]] = {
    "OLMo 6 sigma": SixSigma,
    "ZClip 2.5": ZClip,
    "KillLossSpike": KillLossSpike,
    "Megatron 10x": TenTimesFirst,
    "median/MAD": MedianRule,
}
