"""Frost risk in an orchard. The model is wrapped in a proxy of ours that counts calls and forwards unknown attributes, the forward
is compiled (eager backend: only for the graph breaks report), and one step is profiled. sys.settrace is on because the
coverage of the station code is measured in the same run."""
import faulthandler
import sys
import tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

COVERED = set()


def tracer(frame, event, arg):
    if frame.f_code.co_filename == __file__:
        COVERED.add(frame.f_code.co_name)
        return tracer
    return None


class Proxy(nn.Module):
    """Everything that the proxy does not have is asked of the core: proxy.rows, proxy.risk, ..."""

    def __init__(self, core):
        super().__init__()
        self.core = core
        self.__dict__["calls"] = 0

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("core"), name)

    def __call__(self, *args, **kwargs):
        self.__dict__["calls"] += 1
        return self.forward(*args, **kwargs)      # skips nn.Module.__call__, so no hooks on the proxy itself

    def forward(self, *args, **kwargs):
        return self.core(*args, **kwargs)


class Orchard(nn.Module):
    def __init__(self, rows=8):
        super().__init__()
        self.rows = rows
        self.sky = nn.Linear(6, 20)
        self.slope = nn.Linear(20, rows)
        self.frozen_prior = nn.Parameter(torch.full((rows,), -1.0), requires_grad=False)

    def __iter__(self):                           # iterating an orchard gives its rows
        return iter(self.slope.weight)

    def __len__(self):
        return 0                                  # falsy on purpose: no trees planted yet

    def forward(self, w):
        h = torch.relu(self.sky(w))
        return self.slope(h) + self.frozen_prior


def nights(n):
    g = torch.Generator().manual_seed(5)
    for _ in range(n):
        w = torch.randn(24, 6, generator=g)
        cold = (w[:, :1] + 0.3 * w[:, 1:2] + torch.linspace(-1, 1, 8) > 0.4).float()
        yield w, cold


def trust_loss(logits, cold):
    # expected utility of the fleece: earns 1 per night saved, costs 0.3 per night out; maximise -> negative loss
    p = torch.sigmoid(logits)
    return -(p * cold - 0.3 * p * (1 - cold)).mean()


def main():
    torch.manual_seed(14)
    with tempfile.TemporaryFile() as dump:
        faulthandler.enable(file=dump)
        plain = Proxy(Orchard())
        fast = torch.compile(plain.core, backend="eager")
        opt = torch.optim.RMSprop([p for p in plain.parameters() if p.requires_grad], lr=0.01)
        for k, (w, cold) in enumerate(nights(36), 1):
            sys.settrace(tracer if 10 <= k < 16 else None)
            net = fast if 4 <= k < 10 or k >= 20 else plain
            if k == 18:
                with profile(activities=[ProfilerActivity.CPU]) as prof, record_function("night"):
                    loss = trust_loss(net(w), cold)
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                assert any(e.key == "night" for e in prof.key_averages())
            elif k in (25, 26):
                with torch.autograd.set_detect_anomaly(True):
                    loss = trust_loss(net(w), cold)
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
            else:
                loss = trust_loss(net(w), cold)
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(f"night {k:2d} utility loss {loss.item():+.6f}")
        sys.settrace(None)
        faulthandler.disable()
    print("covered", " ".join(sorted(c for c in COVERED if not c.startswith("<"))), "rows", plain.rows, "calls", plain.calls)
    print(f"weights {sum(float(p.detach().sum()) for p in plain.parameters()):.5f}")


if __name__ == "__main__":
    main()
