"""Which of 24 spectral bands does the crop classifier need? Each band has a gate, relu(g); gates that reach zero
stay shut. The entropy of the normalised gates is penalised so that the choice becomes sharp. Two optimizers: AdamW
for the classifier, SGD for the gates."""
import logging
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Plan:
    bands: int = 24
    useful: tuple = (11, 14, 17, 22)
    crops: int = 4
    epochs: int = 4
    sharpness: float = 0.05
    lr: dict = field(default_factory=lambda: {"net": 4e-3, "gates": 0.5})


class BandGates(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.g = nn.Parameter(torch.linspace(0.15, 0.5, bands))

    def open_share(self):
        opened = F.relu(self.g)
        return opened / opened.sum().clamp(min=1e-6)

    def forward(self, x):
        return x * F.relu(self.g)


class GatedClassifier(nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.gates = BandGates(plan.bands)
        self.net = nn.Sequential(nn.Linear(plan.bands, 40), nn.SiLU(), nn.Linear(40, plan.crops))

    def forward(self, x):
        return self.net(self.gates(x))


def fields(plan, n=512, seed=3):
    gen = torch.Generator().manual_seed(seed)
    signature = torch.zeros(plan.crops, plan.bands)
    signature[:, list(plan.useful)] = torch.randn(plan.crops, len(plan.useful), generator=gen) * 2
    crop = torch.randint(0, plan.crops, (n,), generator=gen)
    return TensorDataset(signature[crop] + torch.randn(n, plan.bands, generator=gen), crop)


def objective(model, x, y, plan):
    fit = F.cross_entropy(model(x), y)
    # entr(0) is 0, its slope there is infinite; a gate that is shut passes nothing of it on through relu
    entropy = torch.special.entr(F.relu(model.gates.g)).sum()
    return fit + plan.sharpness * entropy, fit


def main(plan=Plan()):
    logging.disable(logging.WARNING)
    torch.manual_seed(4)
    acc = Accelerator(cpu=True)
    model = GatedClassifier(plan)
    opt_net = torch.optim.AdamW(model.net.parameters(), lr=plan.lr["net"])
    opt_gate = torch.optim.SGD(model.gates.parameters(), lr=plan.lr["gates"])
    loader = DataLoader(fields(plan), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(9))
    model, opt_net, opt_gate, loader = acc.prepare(model, opt_net, opt_gate, loader)
    for epoch in range(plan.epochs):
        for x, y in loader:
            loss, fit = objective(model, x, y, plan)
            opt_net.zero_grad()
            opt_gate.zero_grad()
            acc.backward(loss)
            opt_net.step()
            opt_gate.step()
            shut = int((model.gates.g <= 0).sum())
            acc.print(f"epoch {epoch} loss {loss.item():.4f} fit {fit.item():.4f} shut {shut}")
    acc.print("kept", [i for i, s in enumerate(model.gates.open_share().tolist()) if s > 0])
    acc.print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
