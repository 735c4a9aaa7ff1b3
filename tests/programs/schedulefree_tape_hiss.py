import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer


class ScheduleFreeSGD(Optimizer):
    """The Road Less Scheduled, Algorithm 1; p holds y, x is recovered in eval_(). All scalars are tensors."""

    def __init__(self, params, lr=1.0, momentum=0.9, power=2.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, power=power))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta = group['momentum']
            lr = torch.tensor(group['lr'])
            for p in group['params']:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st['z'] = p.clone()
                    st['weight_sum'] = torch.zeros(())
                weight = lr ** group['power']
                st['weight_sum'] = st['weight_sum'] + weight
                ckp1 = weight / st['weight_sum']
                # y_{k+1} from y_k, z_k and the gradient
                p.lerp_(st['z'], ckp1)
                p.add_(p.grad * lr * (beta * (1 - ckp1) - 1))
                st['z'] = st['z'] - lr * p.grad


class Dehisser(nn.Module):
    def __init__(self, ch=10):
        super().__init__()
        self.analysis = nn.Conv1d(1, ch, 17, padding=8, bias=False)
        self.gate = nn.Conv1d(ch, ch, 5, padding=2)
        self.synthesis = nn.Conv1d(ch, 1, 17, padding=8, bias=False)

    def forward(self, x):
        bands = self.analysis(x)
        return self.synthesis(bands * torch.sigmoid(self.gate(bands.abs())))


def reel(batch, length=256):
    t = torch.arange(length) / 8000.
    f = torch.empty(batch, 1).uniform_(110, 880)
    wow = 1 + 0.01 * torch.sin(2 * math.pi * 4 * t)
    clean = torch.sin(2 * math.pi * f * wow * t) + .3 * torch.sin(4 * math.pi * f * t)
    hiss = .4 * torch.randn(batch, length)
    return clean[:, None], (clean + hiss)[:, None]


torch.manual_seed(1963)
model = Dehisser()
opt = ScheduleFreeSGD(model.parameters(), momentum=0.9)
PEAK, WARMUP, STEPS = 0.4, 20, 70

for step in range(STEPS):
    for g in opt.param_groups:
        g['lr'] = PEAK * min(1.0, step / WARMUP)
    clean, noisy = reel(16)
    loss = F.mse_loss(model(noisy), clean)
    model.zero_grad()
    loss.backward()
    print('step=%d lr=%.4f mse=%.7f' % (step, opt.param_groups[0]['lr'], loss.item()))
    opt.step()

print('final', torch.cat([p.detach().flatten() for p in model.parameters()]).abs().sum().item())
