import dataclasses

import torch
from torch.optim import Optimizer


class RectifiedAdam(Optimizer):
    """Adam whose step is shortened while its second moment rests on few gradients."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @staticmethod
    def rectifier(t, beta2):
        longest = 2 / (1 - beta2) - 1
        power = beta2 ** t
        length = longest - 2 * t * power / (1 - power)
        top = (length - 4) * (length - 2) * longest
        bottom = (longest - 4) * (longest - 2) * length
        return torch.sqrt(top / bottom)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"] = torch.zeros((), dtype=torch.float64)
                    s["m"] = torch.zeros_like(p)
                    s["v"] = torch.zeros_like(p)
                s["t"] += 1
                s["m"].lerp_(p.grad, 1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m = s["m"] / (1 - b1 ** s["t"])
                v = (s["v"] / (1 - b2 ** s["t"])).sqrt()
                r = self.rectifier(s["t"], b2)
                p.sub_(group["lr"] * r.to(p.dtype) * m / (v + group["eps"]))
        return loss


@dataclasses.dataclass
class Window:
    past: torch.Tensor
    future: torch.Tensor


def pollen_season(days=220, seed=17):
    g = torch.Generator().manual_seed(seed)
    d = torch.arange(days, dtype=torch.float32)
    curve = torch.exp(-((d - 110) / 40) ** 2) + 0.2 * torch.sin(d / 3.5) ** 2
    return curve + 0.05 * torch.randn(days, generator=g)


def windows(series, length=14, ahead=2):
    blocks = series.unfold(0, length + ahead, 4)
    for chunk in blocks.split(13):
        yield Window(chunk[:, :length], chunk[:, length:])


class Forecaster(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(1, 10, batch_first=True)
        self.head = torch.nn.Linear(10, 2)

    def forward(self, past):
        return self.head(self.rnn(past.unsqueeze(-1))[0][:, -1])


torch.manual_seed(4)
model = Forecaster()
optimizer = RectifiedAdam(model.parameters(), lr=0.01)
n = 0
for epoch in range(4):
    for w in windows(pollen_season()):
        n += 1
        optimizer.zero_grad()
        loss = torch.nn.functional.huber_loss(model(w.past), w.future, delta=0.5)
        loss.backward()
        print(f"{n}\t{loss.item():.9g}")
        optimizer.step()
print(sum(p.sum() for p in model.parameters()).item())
