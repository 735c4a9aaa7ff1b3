"""Quantisation-aware fine-tuning of the tide-table reader for the buoy's microcontroller.

LSQ: round with a straight-through estimator, step sizes are learned.  The bits go down a ladder, 8 -> 5 -> 3; each rung
costs a jump of the loss and a re-scaling of the step sizes.  Half precision with loss scaling; the scale starts far too
high on purpose, it finds its place in the first iterations.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1212)
LADDER = {0: 8, 24: 5, 44: 3}
STEPS = 64


class LSQ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, s, qmax, gscale):
        ctx.save_for_backward(w, s)
        ctx.qmax, ctx.gscale = qmax, gscale
        return (w / s).round().clamp(-qmax - 1, qmax) * s

    @staticmethod
    def backward(ctx, g):
        w, s = ctx.saved_tensors
        q = w / s
        lo, hi = q < -ctx.qmax - 1, q > ctx.qmax
        mid = ~(lo | hi)
        ds = torch.where(mid, q.round() - q, torch.where(lo, -float(ctx.qmax + 1), float(ctx.qmax)))
        return g * mid, (g * ds).sum().reshape_as(s) * ctx.gscale, None, None


class QLinear(nn.Linear):
    bits = 8

    def __init__(self, i, o):
        super().__init__(i, o)
        self.step_size = nn.Parameter(torch.ones(1))
        self.refit()

    @property
    def qmax(self):
        return 2 ** (self.bits - 1) - 1

    @torch.no_grad()
    def refit(self):
        self.step_size.fill_(2 * self.weight.abs().mean() / self.qmax**0.5)

    def forward(self, x):
        gscale = (self.weight.numel() * self.qmax) ** -0.5
        return F.linear(x, LSQ.apply(self.weight, self.step_size, self.qmax, gscale), self.bias)


def tides(n, g):
    """moon age, hour, wind -> hour class of the next high water (24)"""
    x = torch.rand(n, 3, generator=g)
    y = ((x[:, 0] * 24.8 + 0.3 * x[:, 2]) % 12.4 + 12 * (x[:, 1] > 0.5)).long().clamp(max=23)
    k = torch.arange(1, 5) * 2 * torch.pi
    feats = torch.cat([torch.sin(x[:, :1] * k), torch.cos(x[:, :1] * k), x[:, 1:] * 2 - 1], 1)
    return feats, y


class Rungs:
    """callback-ish: called before each iteration"""

    def __init__(self, model, opt):
        self.model, self.opt = model, opt

    def __call__(self, it):
        if it not in LADDER or it == 0:
            return
        for m in self.model.modules():
            if isinstance(m, QLinear):
                m.bits = LADDER[it]
                m.refit()
                self.opt.state.pop(m.step_size, None)
        print(f"## {LADDER[it]} bits")


model = nn.Sequential(QLinear(10, 64), nn.ReLU(), QLinear(64, 64), nn.ReLU(), QLinear(64, 24))
sizes = [p for n, p in model.named_parameters() if n.endswith("step_size")]
rest = [p for n, p in model.named_parameters() if not n.endswith("step_size")]
opt = torch.optim.Adam([{"params": rest, "lr": 6e-3}, {"params": sizes, "lr": 1e-4}])
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=500)
rungs = Rungs(model, opt)
g = torch.Generator().manual_seed(77)

for it in range(STEPS):
    rungs(it)
    x, y = tides(96, g)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y, reduction="sum")  # summed, the buoy people count it in nats
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(f"it {it:02d} nats {loss.item():.4f} scale 2^{torch.tensor(scaler.get_scale()).log2().item():.0f}")
print("sum", sum(p.double().sum().item() for p in model.parameters()))
