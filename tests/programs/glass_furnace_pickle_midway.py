"""Soft sensor for a glass furnace. Halfway the run 'moves' to another host: model and optimizer go through pickle and deepcopy,
the lazy head is already materialised by then, and the readout bias is replaced by a larger one (a new thermocouple)."""
import copy
import gc
import io
import pickle
import weakref
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils import parametrizations as P
from torch.nn.utils import parametrize


@dataclass
class Cfg:
    steps: int = 48
    move_at: int = 16
    widen_at: int = 30
    lr: float = 3e-3
    sizes: list = field(default_factory=lambda: [24, 24])


class UnitRows(nn.Module):
    def forward(self, w):
        return nn.functional.normalize(w, dim=1)

    def right_inverse(self, w):
        return w


class Furnace(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inlet = nn.LazyLinear(cfg.sizes[0])
        self.mix = nn.Linear(cfg.sizes[0], cfg.sizes[1], bias=False)
        self.norm = nn.LazyBatchNorm1d()
        self.out = nn.Linear(cfg.sizes[1], 3)

    def forward(self, x):
        h = torch.nn.functional.silu(self.inlet(x))
        h = self.norm(self.mix(h))
        return self.out(h)


def halve_spikes(module, args, output):
    """Forward hook: soft clip what leaves the inlet. Returns a new value, so it changes the graph."""
    return 4.0 * torch.tanh(output / 4.0)


def shrink(module, grad_in, grad_out):
    return tuple(None if g is None else g * 0.5 for g in grad_in)


def clip_args(module, args):
    return (args[0].clamp(-6, 6),)


def hook_up(model):
    model.inlet.register_forward_hook(halve_spikes)
    model.out.register_full_backward_hook(shrink)
    model.mix.register_forward_pre_hook(clip_args)


def batch(gen, ntc):
    x = torch.randn(32, 10, generator=gen)
    t = torch.stack([x[:, :3].sum(1), x[:, 3:6].prod(1), x[:, 6] * x[:, 7], x[:, 8].abs()], 1)
    return x, t[:, :ntc]


def make_opt(model, cfg):
    return torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)


def main(cfg):
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(60)
    model = Furnace(cfg)
    model(batch(gen, 3)[0])                       # materialise
    parametrize.register_parametrization(model.inlet, "weight", UnitRows())
    hook_up(model)
    opt = make_opt(model, cfg)
    thermocouples = 3
    for step in range(1, cfg.steps + 1):
        if step == cfg.move_at:
            # parametrized modules cannot be pickled whole, so bake the unit rows in first
            parametrize.remove_parametrizations(model.inlet, "weight")
            old = weakref.ref(model)
            model, opt = pickle.loads(pickle.dumps((model, opt)))
            gc.collect()
            opt = make_opt(model, cfg)            # baked weight is a new parameter
            model = copy.deepcopy(model)          # what the scheduler of the cluster does to us
            P.orthogonal(model.mix)
            P.weight_norm(model.inlet)
            opt = make_opt(model, cfg)
            print(f"moved; old model alive: {old() is not None}")
        if step == cfg.widen_at:
            thermocouples = 4
            w, b = model.out.weight.data, model.out.bias.data
            model.out.weight = nn.Parameter(torch.cat([w, torch.zeros(1, w.shape[1])]))
            model.out.bias = nn.Parameter(torch.cat([b, torch.zeros(1)]))
            model.out.out_features = 4
            opt.param_groups.clear()
            opt.state.clear()
            opt.add_param_group({"params": list(model.parameters())})
        x, t = batch(gen, thermocouples)
        loss = nn.functional.huber_loss(model(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 3 == 0:
            buf = io.BytesIO()
            torch.save(opt.state_dict(), buf)
            opt.load_state_dict(torch.load(io.BytesIO(buf.getvalue())))
            print(f"step {step:2d} huber {loss.item():.6f} outs {thermocouples}")
    q = model.mix.weight
    print(f"orthogonality {float((q @ q.T - torch.eye(24)).detach().abs().max()) < 1e-4}  sum {float(sum(p.detach().sum() for p in model.parameters())):.4f}")


if __name__ == "__main__":
    main(Cfg())
