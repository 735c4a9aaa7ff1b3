# Echo range of a foghorn from spectra. LBFGS with strong Wolfe, activations packed to
# half on the tape, a hand-made autograd function. Everything is counted: the packing
# budget of the embedded box is in calls, not bytes.
from collections import Counter

import torch
from torch.autograd.graph import saved_tensors_hooks

torch.manual_seed(1207)
TALLY = Counter()


class SoftClip(torch.autograd.Function):
    """x / (1 + |x|) with a backward that is recomputed from the output"""

    @staticmethod
    def forward(ctx, x):
        TALLY["clip_fwd"] += 1
        y = x / (1 + x.abs())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        TALLY["clip_bwd"] += 1
        (y,) = ctx.saved_tensors
        return g * (1 - y.abs()) ** 2


class Packed:
    def __init__(self, t):
        self.dtype, self.half = t.dtype, t.to(torch.float16)


def pack(t):
    TALLY["pack"] += 1
    if t.is_floating_point() and t.numel() >= 512 and not t.requires_grad:
        TALLY["packed"] += 1
        return Packed(t)
    return t


def unpack(p):
    TALLY["unpack"] += 1
    return p.half.to(p.dtype) if isinstance(p, Packed) else p


class Horn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(32, 24)
        self.b = torch.nn.Linear(24, 1)

    def __getattr__(self, name):
        TALLY["getattr"] += 1
        return super().__getattr__(name)

    def forward(self, s):
        TALLY["forward"] += 1
        return self.b(SoftClip.apply(self.a(s))).squeeze(1)


class FlakyProbe:
    """A hook that raises now and then; the caller is expected to retry."""

    def __init__(self, every):
        self.n, self.every = 0, every

    def __call__(self, grad):
        self.n += 1
        if self.n % self.every == 0:
            raise ConnectionError("probe buffer full")


spec = torch.randn(96, 32)
dist = (spec[:, :4].sum(1) * 0.5).tanh() + 0.05 * torch.randn(96)
horn = Horn()
opt = torch.optim.LBFGS(horn.parameters(), lr=0.8, max_iter=4, line_search_fn="strong_wolfe", history_size=5)
probe = FlakyProbe(every=17)
handle = horn.a.weight.register_hook(probe)
horn.b.register_full_backward_hook(lambda m, gi, go: TALLY.update(b_hook=1))
horn.b.register_forward_pre_hook(lambda m, a: TALLY.update(b_pre=1))
retries = 0

for step in range(1, 15):
    rows = torch.randperm(96)[:64]

    def closure():
        global retries
        TALLY["closure"] += 1
        for attempt in range(3):
            opt.zero_grad()
            with saved_tensors_hooks(pack, unpack):
                # log-likelihood with a narrow sigma: goes below zero when it fits
                err = horn(spec[rows]) - dist[rows]
                loss = 0.5 * (err / 0.1).pow(2).mean() + torch.log(torch.tensor(0.1))
            try:
                loss.backward()
                return loss
            except ConnectionError:
                retries += 1
        raise RuntimeError("probe is dead")

    first = opt.step(closure)
    vers = [p._version for p in horn.parameters()]
    ptr = horn.a.weight.data_ptr()
    print(f"step {step:2d} loss {float(first.detach()):+.6f} retries {retries} "
          f"versions {vers} moved {horn.a.weight.untyped_storage().data_ptr() != ptr} "
          f"tally {' '.join(f'{k}={TALLY[k]}' for k in sorted(TALLY))}")

handle.remove()
hooks = horn.a.weight._backward_hooks
print("hooks left", 0 if hooks is None else len(hooks), len(horn.b._backward_hooks), len(horn.b._forward_pre_hooks),
      len(horn._forward_hooks), len(horn._forward_pre_hooks))
print("func evals", opt.state[horn._parameters["a.weight"] if "a.weight" in horn._parameters else horn.a.weight]["func_evals"])
print("n_iter", opt.state[horn.a.weight]["n_iter"], "rng", int(torch.get_rng_state().long().sum()))
print(f"weights {sum(p.double().sum().item() for p in horn.parameters()):.8f}")
