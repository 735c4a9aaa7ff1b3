"""Leak grading of barrels. The plant's job runner is picky: before and after training it
checks that the objects it got are the objects it knows (types, signatures, pickles)."""
import copy
import inspect
import io
import pickle
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    staves: int = 9
    grades: int = 4
    lr: float = 0.15
    steps: int = 24
    audit_every: int = 6
    names: list = field(default_factory=lambda: ["tight", "weeping", "dripping", "firewood"])


class Barrel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.hoop = nn.Linear(cfg.staves, 16)
        self.lid = nn.Linear(16, cfg.grades)

    def forward(self, x, *, temperature: float = 1.0):
        return self.lid(torch.tanh(self.hoop(x))) / temperature


class SignLike(torch.optim.Optimizer):
    """sign of a momentum, our own"""

    def __init__(self, params, lr=0.01, beta=0.8):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None, *, dampen: float = 1.0):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                p.add_(m.sign() * m.abs().sqrt(), alpha=-group["lr"] * dampen)


def describe(tag, obj, method):
    fn = getattr(obj, method)
    print(f"  [{tag}] {type(obj).__name__} {obj.__class__ is type(obj)} {type(obj).__mro__[1].__name__} "
          f".{method}{inspect.signature(fn)} name={fn.__name__} qual={fn.__qualname__} "
          f"bound={inspect.ismethod(fn)} own={method in vars(obj)} module={fn.__module__}")


def audit(model, opts):
    describe("model", model, "forward")
    for name, opt in opts.items():
        describe(name, opt, "step")
        print(f"    dict {sorted(k for k in vars(opt) if not k.startswith('_optimizer') and k != '_zero_grad_profile_name')} "
              f"pre {len(opt._optimizer_step_pre_hooks)} post {len(opt._optimizer_step_post_hooks)} type_ok {type(opt) in (SignLike, torch.optim.SGD)}")
    print(f"    model dict {sorted(vars(model))}")
    n_hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    g_hooks = sum(len(p._backward_hooks or ()) for p in model.parameters())
    post = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    print(f"    hooks {n_hooks}/{g_hooks}/{post} pickle {len(pickle.dumps(model))} opt {[len(pickle.dumps(o)) for o in opts.values()]}")
    twin = copy.deepcopy(model)
    print("    twin", type(twin) is Barrel, twin.forward.__func__ is Barrel.forward, repr(twin) == repr(model))
    print("    torch", torch.Tensor.backward.__name__, inspect.signature(torch.Tensor.backward),
          inspect.isfunction(F.cross_entropy), F.cross_entropy.__module__, type(loss_fn).__name__,
          nn.Module.__call__.__qualname__, inspect.signature(torch.autograd.backward))


loss_fn = nn.CrossEntropyLoss(reduction="sum")


def main(cfg=Cfg()):
    torch.manual_seed(77)
    model = Barrel(cfg)
    print(model)
    opts = {"hoop": SignLike(model.hoop.parameters(), lr=0.01), "lid": torch.optim.SGD(model.lid.parameters(), lr=cfg.lr / 64)}
    forward_before = Barrel.forward
    audit(model, opts)
    w = torch.randn(cfg.staves, cfg.grades)
    for step in range(1, cfg.steps + 1):
        x = torch.randn(64, cfg.staves)
        y = (x @ w).argmax(1)
        loss = loss_fn(model(x, temperature=0.7 if step < 10 else 1.0), y)   # summed, on purpose
        for o in opts.values():
            o.zero_grad()
        loss.backward()
        result = [opts["hoop"].step(dampen=1.0 if step > 5 else 0.3), opts["lid"].step()]
        print(f"step {step:2d} loss {loss.item():.5f} returned {result}")
        if step % cfg.audit_every == 0:
            audit(model, opts)
    buf = io.BytesIO()
    pickle.dump((model, opts["hoop"]), buf)
    m2, o2 = pickle.loads(buf.getvalue())
    print("same class", isinstance(m2, Barrel), type(o2) is SignLike, Barrel.forward is forward_before, len(buf.getvalue()))
    print(f"{cfg.names[0]}: weights {sum(p.double().sum().item() for p in m2.parameters()):.8f}")


if __name__ == "__main__":
    main()
