"""An eight-bit student learns cough / speech / wheeze from a float teacher (fake quantisation, straight through)."""
import torch
from torch import nn
import torch.nn.functional as F


class RoundThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, zero, top):
        q = torch.round(x / scale) + zero
        ctx.save_for_backward((q >= 0) & (q <= top))
        return (q.clamp(0, top) - zero) * scale

    @staticmethod
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return torch.where(inside, g, torch.zeros_like(g)), None, None, None


class Observer(nn.Module):
    def __init__(self, bits):
        super().__init__()
        self.top = 2 ** bits - 1
        self.active = False
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def forward(self, x):
        if not self.active:
            with torch.no_grad():
                self.low.copy_(torch.minimum(self.low, x.min()))
                self.high.copy_(torch.maximum(self.high, x.max()))
            return x
        scale = (self.high - self.low).clamp(min=1e-6) / self.top
        return RoundThrough.apply(x, scale, torch.round(-self.low / scale), self.top)


class QuantLinear(nn.Linear):
    def __init__(self, a, b, bits):
        super().__init__(a, b)
        self.input_range = Observer(bits)
        self.weight_range = Observer(bits)

    def forward(self, x):
        return F.linear(self.input_range(x), self.weight_range(self.weight), self.bias)


def sounds(n, gen):
    y = torch.randint(3, (n,), generator=gen)
    band = torch.arange(20).float()
    peak = torch.tensor([4.0, 9.0, 15.0])[y][:, None] + torch.randn(n, 1, generator=gen)
    return torch.exp(-((band - peak) / 3) ** 2) + 0.2 * torch.randn(n, 20, generator=gen), y


def observers(net):
    return [m for m in net.modules() if isinstance(m, Observer)]


torch.manual_seed(41)
gen = torch.Generator().manual_seed(42)
teacher = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 3))
student = nn.Sequential(QuantLinear(20, 10, 4), nn.ReLU(), QuantLinear(10, 3, 4))

opt = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for i in range(14):
    x, y = sounds(24, gen)
    opt.zero_grad()
    loss = F.cross_entropy(teacher(x), y)
    loss.backward()
    opt.step()
    print("teacher", i + 1, "%.4f" % loss.item())
teacher.requires_grad_(False).eval()

print("before:", [o.low.item() for o in observers(student)])
with torch.no_grad():
    for i in range(3):
        student(sounds(24, gen)[0])
        print("calibrate", i + 1)
for o in observers(student):
    o.active = True
print("after:", ["%.3f %.3f" % (o.low.item(), o.high.item()) for o in observers(student)])

opt = torch.optim.SGD(student.parameters(), lr=0.3, momentum=0.5)
for i in range(24):
    x, _ = sounds(24, gen)
    opt.zero_grad()
    soft = F.softmax(teacher(x) / 2, dim=1)
    loss = F.kl_div(F.log_softmax(student(x) / 2, dim=1), soft, reduction="batchmean") * 4
    loss.backward()
    opt.step()
    print("student", i + 1, "%.4f" % loss.item())
norm = sum(p.detach().abs().sum().item() for m in (teacher, student) for p in m.parameters())
print("absolute weights of both", "%.4f" % norm)
