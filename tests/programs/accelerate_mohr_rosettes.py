import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

# Strain rosettes on a crane boom: load cells -> plane strain -> largest shear strain
# (the radius of Mohr's circle), which is what the photoelastic camera gives us.

set_seed(77)


def campaign(n_batches, tare, gen):
    per = 8
    load = torch.randn(n_batches * per, 3, generator=gen) * torch.tensor([1.0, 0.6, 0.3]) + 0.4
    if tare:
        # since the new protocol a zero reading is logged ahead of each series
        load[::per] = 0.0
    A = torch.tensor([[0.9, -0.3, 0.1], [-0.2, 0.7, 0.2], [0.3, 0.3, -0.8]])
    e = load @ A.T
    shear = torch.sqrt(((e[:, 0] - e[:, 1]) / 2) ** 2 + (e[:, 2] / 2) ** 2)
    shear = shear + 0.01 * torch.randn(shear.shape, generator=gen)
    return TensorDataset(load, shear.clamp(min=0))


class MohrCircle(nn.Module):
    def forward(self, strain):
        ex, ey, gxy = strain.unbind(-1)
        centre = (ex + ey) / 2
        radius = torch.hypot((ex - ey) / 2, gxy / 2)
        return centre, radius


class Boom(nn.Module):
    # no biases: an unloaded boom has no strain
    def __init__(self, width=24):
        super().__init__()
        self.inner = nn.Linear(3, width, bias=False)
        self.outer = nn.Linear(width, 3, bias=False)
        self.circle = MohrCircle()

    def forward(self, load):
        strain = self.outer(torch.tanh(self.inner(load)))
        return self.circle(strain)


def main():
    accelerator = Accelerator(cpu=True)
    gen = torch.Generator().manual_seed(5)
    data = ConcatDataset([campaign(15, False, gen), campaign(27, True, gen)])
    loader = DataLoader(data, batch_size=8, shuffle=False)

    model = Boom()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    for step, (load, shear) in enumerate(loader):
        centre, radius = model(load)
        loss = nn.functional.huber_loss(radius, shear, delta=0.5) + 1e-4 * centre.pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step + 1}: huber {loss.item():.7f} lr {scheduler.get_last_lr()[0]:.6f}")

    accelerator.print("final", sum(p.abs().sum().item() for p in model.parameters()))


main()
