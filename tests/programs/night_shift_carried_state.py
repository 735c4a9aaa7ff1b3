"""Alarm rate of a control room, one stream, truncated back-propagation.

Curriculum: for the first ten windows the state is dropped at each window, afterwards the night shift
carries it on, so that slow drifts are seen."""
import signal
import sys
import threading

import torch
from torch import nn


class Room(nn.Module):
    def __init__(self, sensors=5, hidden=14):
        super().__init__()
        self.cell = nn.LSTMCell(sensors, hidden)
        self.rate = nn.Linear(hidden, 1)

    def forward(self, window, state=None):
        rates = []
        for reading in window:
            state = self.cell(reading, state)
            rates.append(self.rate(state[0]))
        return torch.cat(rates, 1), state


class Carrier:
    """decides what of the state goes into the next window"""

    def __init__(self, fresh_windows):
        self.fresh_windows, self.seen, self.state = fresh_windows, 0, None

    def take(self):
        return self.state

    def give(self, state):
        self.seen += 1
        # the day shift forgets; the night shift remembers
        self.state = None if self.seen < self.fresh_windows else tuple(s for s in state)


def stream(windows, length=6, rooms=4):
    g = torch.Generator().manual_seed(55)
    drift = torch.zeros(rooms, 5)
    for _ in range(windows):
        drift = 0.9 * drift + 0.3 * torch.randn(rooms, 5, generator=g)
        window = drift + 0.5 * torch.randn(length, rooms, 5, generator=g)
        alarms = torch.poisson(torch.exp(0.5 * window[..., 0]).T, generator=g)
        yield window, alarms


def train(windows=30):
    torch.manual_seed(18)
    room = Room()
    opt = torch.optim.Adam(room.parameters(), lr=1e-2)
    carrier = Carrier(fresh_windows=10)
    poisson = nn.PoissonNLLLoss(log_input=True)
    for step, (window, alarms) in enumerate(stream(windows), 1):
        log_rate, state = room(window, carrier.take())
        loss = poisson(log_rate, alarms)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(room.parameters(), 1.0)
        opt.step()
        carrier.give(state)
        print(f"window {step:2d} nll {loss.item():.6f} carried {carrier.state is not None}", flush=True)
    return room


if __name__ == "__main__":
    print("threads", threading.active_count(), "hook", sys.excepthook is sys.__excepthook__,
          "sigint", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
    final = train()
    print(f"weights {sum(p.sum().item() for p in final.parameters()):.6f}")
