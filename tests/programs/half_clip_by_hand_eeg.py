"""Sleep stages from EEG band powers, everything in float16 (a small board).  The gradients are
clipped by a hand-written global norm that scales them in place to a fixed length."""
import torch
from torch import nn

torch.manual_seed(40)
torch.set_num_threads(1)
HALF = torch.float16


class Staging(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(20, 24)
        self.outer = nn.Linear(24, 5)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


def rescale_gradients(parameters, length=0.25):
    """every update has the same length"""
    with torch.no_grad():
        grads = [p.grad for p in parameters]
        total = torch.zeros((), dtype=HALF)
        for g in grads:
            total += (g * g).sum()
        factor = length / total.sqrt()
        for g in grads:
            g.mul_(factor)


centres = torch.randn(5, 20) * 3


def epoch_of_sleep(n=40):
    stage = torch.randint(0, 5, (n,))
    return (centres[stage] + 0.3 * torch.randn(n, 20)).to(HALF), stage


model = Staging().to(HALF)
opt = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(1, 61):
    x, stage = epoch_of_sleep()
    logits = model(x)
    loss = nn.functional.cross_entropy(logits.float(), stage)
    opt.zero_grad()
    loss.backward()
    rescale_gradients(list(model.parameters()))
    opt.step()
    print(f"step {step:02d} loss {loss.item():.6f}")
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
