"""Beat error of pendulum clocks. The movement is described in a plug-in file that is written beside the job
and imported by name; the train of wheels logs the order in which its modules are called."""
import importlib
import os
import sys
import tempfile
import types

import torch

PLUGIN = '''
import sys, torch
from torch import nn
import utils_clock            # sibling, found through sys.path[0]

class Wheel(nn.Module):
    def __init__(self, a, b, label):
        super().__init__()
        self.lin, self.label = nn.Linear(a, b), label
    def forward(self, x):
        utils_clock.LOG.append(self.label)
        return torch.sin(self.lin(x))

class Movement(nn.Module):
    """calls some wheels twice, one never, and shares one of them"""
    def __init__(self):
        super().__init__()
        self.centre = Wheel(6, 8, "c")
        self.third = Wheel(8, 8, "t")
        self.escape = Wheel(8, 8, "e")
        self.spare = Wheel(8, 8, "s")
        self.alias = self.third
        self.anchor = nn.Linear(8, 2)
    def __call__(self, x):              # not through nn.Module.__call__
        utils_clock.LOG.append("(")
        y = self.forward(x)
        utils_clock.LOG.append(")")
        return y
    def forward(self, x):
        h = self.centre(x)
        h = h + self.alias(self.third(h))
        if len(utils_clock.LOG) % 2:
            h = self.escape.forward(h)
        mu, ls = self.anchor(h).unbind(-1)
        return mu, ls.clamp(-4, 2)
'''


class Proxy:
    """A thing that is no Module but looks like one; the shop's loggers wrap models in it."""

    def __init__(self, inner):
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "asked", [])

    def __getattr__(self, name):
        self.asked.append(name)
        return getattr(self.inner, name)

    def __call__(self, *a):
        return self.inner(*a)

    @property
    def __class__(self):
        return type(self.inner)


def train(net, log, say):
    opt = torch.optim.Adam((p for n, p in net.named_parameters() if not n.startswith("spare")), lr=5e-3)
    original_step = opt.step
    stepped = []

    def step(self, *a, **k):                     # the shop counts its steps itself
        stepped.append(len(stepped) + 1)
        return original_step(*a, **k)

    opt.step = types.MethodType(step, opt)
    g = torch.Generator().manual_seed(13)
    for i in range(1, 21):
        x = torch.randn(40, 6, generator=g)
        beat = 0.05 * x[:, 2] - 0.02 * x[:, 4]
        log.clear()
        mu, ls = net(x)
        # gaussian likelihood of milliseconds: soon far below zero
        nll = (ls + 0.5 * ((beat - mu) * torch.exp(-ls)) ** 2).mean()
        opt.zero_grad()
        nll.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        say(f"step {i:2d} nll {nll.item():+.6f} norm {norm.item():.5f} order {''.join(log)} own {stepped[-1]}")
    return opt, step


def main():
    torch.manual_seed(2)
    sys_before, meta_before, hooks_before = list(sys.path), len(sys.meta_path), len(sys.path_hooks)
    with tempfile.TemporaryDirectory() as shop:
        for name, text in (("movement", PLUGIN), ("utils_clock", "LOG = []\n")):
            with open(os.path.join(shop, name + ".py"), "w") as f:
                f.write(text)
        sys.path.insert(0, shop)
        sys.dont_write_bytecode = True
        movement = importlib.import_module("movement")
        utils = sys.modules["utils_clock"]
        net = Proxy(movement.Movement())
        print("looks like a module", isinstance(net, torch.nn.Module), type(net).__name__, net.__class__.__name__)
        opt, step = train(net, utils.LOG, print)
        print("asked", len(net.asked), sorted(set(net.asked)))
        print("step kept", opt.step.__func__ is step, opt.step.__name__, "step" in vars(opt))
        inner = net.inner
        print("call kept", type(inner).__call__ is movement.Movement.__dict__["__call__"], inner.alias is inner.third,
              [n for n, _ in inner.named_children()], inner.spare.lin.weight.grad)
        print(sorted(os.listdir(shop)), utils.__file__ == os.path.join(shop, "utils_clock.py"))
        sys.path.remove(shop)
    print("path kept", sys.path == sys_before, len(sys.meta_path) - meta_before, len(sys.path_hooks) - hooks_before)
    print("script dir", sys.path[0] == os.path.dirname(os.path.abspath(__file__)), __name__, os.path.basename(sys.argv[0]))
    print(f"weights {sum(p.double().sum().item() for p in inner.parameters()):.8f}")


if __name__ == "__main__":
    main()
