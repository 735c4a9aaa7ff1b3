"""Tram brake temperature. All weights live in one flat vector, layers are views of it.

Temperatures are a Tensor subclass that remembers its unit, as somebody once mixed C and K.
"""
import contextlib
import math

import torch
import torch.nn.functional as F

torch.manual_seed(1912)


class Unit(torch.Tensor):
    """A tensor with a unit; arithmetic between two different units is refused."""

    @staticmethod
    def wrap(t, unit):
        out = t.as_subclass(Unit)
        out.unit = unit
        return out

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        units = {a.unit for a in args if isinstance(a, Unit) and getattr(a, "unit", None)}
        if len(units) > 1:
            raise TypeError(f"{func.__name__}: units {sorted(units)}")
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Unit):
            out.unit = next(iter(units), None)
        return out

    def bare(self):
        return self.as_subclass(torch.Tensor)


LAYOUT = [("w0", (5, 24)), ("b0", (24,)), ("w1", (24, 24)), ("b1", (24,)), ("w2", (24, 1)), ("b2", (1,))]
SIZE = sum(math.prod(s) for _, s in LAYOUT)


def views(flat):
    at, out = 0, {}
    for name, shape in LAYOUT:
        n = math.prod(shape)
        out[name] = flat[at:at + n].view(shape)
        at += n
    return out


def net(v, x):
    h = F.silu(x @ v["w0"] + v["b0"])
    h = F.silu(h @ v["w1"] + v["b1"])
    return (h @ v["w2"] + v["b2"]).squeeze(-1)


def stops(n, steepest):
    x = torch.rand(n, 5)
    x[:, 1] *= steepest                       # gradient of the line
    kelvin = 290 + 90 * x[:, 0] ** 2 * (1 + x[:, 1]) + 8 * x[:, 4]
    return x, Unit.wrap(kelvin, "K")


@contextlib.contextmanager
def update(flat, opt, frozen):
    opt.zero_grad()
    yield
    flat.grad.mul_(~frozen)                   # the first layer is from the bench and stays for a while
    opt.step()


def main():
    flat = torch.randn(SIZE) * 0.25
    flat.requires_grad_()
    frozen = torch.zeros(SIZE, dtype=torch.bool)
    views(frozen)["w0"].fill_(True)
    opt = torch.optim.RMSprop([flat], lr=4e-3, momentum=0.5)
    for step in range(60):
        grade = 0.2 + 0.8 * min(1.0, step // 12 / 4)          # steeper lines later on
        if step == 24:
            frozen.zero_()
        if step in (12, 36):
            opt.state.clear()                                 # forget the momentum of the easy lines
        x, kelvin = stops(40, grade)
        with update(flat, opt, frozen):
            pred = Unit.wrap(330 + 40 * net(views(flat), x), "K")
            miss = (pred - kelvin).bare()
            loss = F.huber_loss(miss, torch.zeros_like(miss), delta=3.0)
            loss.backward()
        if step % 2 == 1:
            print(f"stop {step + 1:3d} steepest {grade:.1f} huber {loss.item():.6f} hottest miss {miss.abs().max().item():.3f} K")
    print(f"flat sum {flat.detach().double().sum().item():.8f}")


main()
