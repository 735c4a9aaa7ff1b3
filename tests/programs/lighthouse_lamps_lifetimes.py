"""Burn-out hours of lighthouse lamps: a small sweep over widths.

The sweep once filled a 16 GB box because old models stayed alive, so this version
keeps a ledger of what is still reachable after each trial.
"""
import gc
import sys
import weakref

import torch
from torch import nn


class LampNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.scale = nn.Linear(width, 1)
        self.shape = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.scale(h).squeeze(-1), nn.functional.softplus(self.shape(h).squeeze(-1)) + 0.3


class HoursTensor(torch.Tensor):
    """only a tag, so that the targets can be counted"""


class Marker:
    """lives as long as the graph node that carries it"""


def weibull_nll(log_scale, k, hours, failed):
    z = hours.log() - log_scale
    log_hazard = k.log() + (k - 1) * z - log_scale
    return (torch.exp(k * z) - failed * log_hazard).mean()


def live(cls):
    return sum(1 for o in gc.get_objects() if type(o) is cls)


def make_data(n=192):
    g = torch.Generator().manual_seed(41)
    x = torch.randn(n, 5, generator=g)
    hours = torch.exp(0.4 * x[:, 0] - 0.2 * x[:, 3] + 0.3 * torch.randn(n, generator=g))
    failed = (torch.rand(n, generator=g) > 0.25).float()
    return x, hours, failed


def trial(width, data, watch, epochs=3):
    """Trains inside the function; nothing but a float may leave it."""
    torch.manual_seed(width)
    net = LampNet(width)
    watch.append((f"net{width}", weakref.ref(net)))
    watch.append((f"trunk{width}", weakref.ref(net.trunk[0])))
    x, hours, failed = data
    base = sys.getrefcount(net)
    for epoch in range(epochs):
        # a new optimizer each epoch: the moments are forgotten on purpose
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2 / (epoch + 1))
        watch.append((f"opt{width}.{epoch}", weakref.ref(opt)))
        for i in range(0, 192, 48):
            batch = x[i:i + 48].clone()
            out = net(batch)
            loss = weibull_nll(*out, hours[i:i + 48], failed[i:i + 48])
            loss.grad_fn.metadata["marker"] = marker = Marker()     # nodes take no weakref themselves
            graph = weakref.ref(marker)
            del marker
            bref, oref, lref = weakref.ref(batch), weakref.ref(out[0]), weakref.ref(loss)
            opt.zero_grad()
            loss.backward()
            opt.step()
            value = loss.item()
            del batch, out, loss
            left = [r() is not None for r in (bref, oref, lref, graph)]
            print(f"w{width} e{epoch} i{i:3d} nll {value:.5f} alive {''.join('ny'[v] for v in left)} "
                  f"refs {sys.getrefcount(net) - base}")
        del opt
        print(f"   optimizers alive {sum(r() is not None for n, r in watch if n.startswith('opt'))} nets {live(LampNet)}")
    return value


def main():
    # the very first optimizer pulls in half of torch and leaves cycles behind: get that over with
    warm = nn.Linear(1, 1)
    torch.optim.AdamW(warm.parameters())
    del warm
    gc.collect()
    gc.disable()          # only reference counts may free things here
    data = make_data()
    tagged = data[1].as_subclass(HoursTensor)
    watch, scores = [], {}
    for width in (8, 12, 20):
        scores[width] = trial(width, data, watch)
        alive = [n for n, r in watch if r() is not None]
        print(f"after trial {width}: alive without gc {alive}, LampNet {live(LampNet)}, HoursTensor {live(HoursTensor)}")
    gc.enable()
    gc.collect()
    print("after gc:", [n for n, r in watch if r() is not None], "garbage", len(gc.garbage))
    del tagged
    print("HoursTensor", live(HoursTensor))
    best = min(scores, key=scores.get)
    print(f"best width {best} nll {scores[best]:.5f}")


if __name__ == "__main__":
    main()
