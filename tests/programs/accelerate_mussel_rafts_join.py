# Mussel growth on rafts: mean and spread of the shell length from water readings.
# 13 batches over two workers do not come out even, hence Join (accelerate's join_uneven_inputs
# does nothing on the CPU); 3 micro-batches per step, so the worker with 7 batches has a short third step.
# Lengths are in metres, so the Gaussian likelihood is far above 1 and the loss goes negative.
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Cfg:
    rafts: int = 52
    batch: int = 4
    micro: int = 3
    epochs: int = 6
    lr: float = 0.02
    seed: int = 11


class GrowthNet(torch.nn.Module):
    def __init__(self, n_in=5, width=24):
        super().__init__()
        self.trunk = torch.nn.Sequential(torch.nn.Linear(n_in, width), torch.nn.SiLU(), torch.nn.Linear(width, width),
                                         torch.nn.SiLU())
        self.mean = torch.nn.Linear(width, 1)
        self.raw = torch.nn.Linear(width, 1)

    def forward(self, water):
        h = self.trunk(water)
        return self.mean(h).squeeze(-1), torch.nn.functional.softplus(self.raw(h)).squeeze(-1) + 0.02


def readings(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    water = torch.randn(cfg.rafts, 5, generator=g)
    length = 0.05 + 0.01 * torch.tanh(water @ torch.randn(5, generator=g)) + 0.002 * torch.randn(cfg.rafts, generator=g)
    return TensorDataset(water, length)


def nll(mu, sigma, y):
    z = (y - mu) / sigma
    return (0.5 * z * z + sigma.log()).mean()


def correlation(a, b):
    """Rank-free skill, only for the log: undefined for the raft that comes alone."""
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.norm() * b.norm()) if len(a) > 1 else torch.tensor(float("nan"))


def main():
    cfg = Cfg()
    set_seed(cfg.seed)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=cfg.micro,
                      dataloader_config=DataLoaderConfiguration(even_batches=False))
    model = GrowthNet()
    # plain SGD: a rank that joined early misses a step, momentum would drift apart
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    loader = DataLoader(readings(cfg), batch_size=cfg.batch, shuffle=False)
    model, opt, loader = acc.prepare(model, opt, loader)
    updates = 0
    for epoch in range(cfg.epochs):
        total, seen = 0.0, 0
        with Join([model]):
            for water, length in loader:
                with acc.accumulate(model):
                    mu, sigma = model(water)
                    loss = nll(mu, sigma, length)
                    acc.backward(loss)
                    opt.step()
                    opt.zero_grad()
                total, seen = total + loss.item(), seen + 1
                if acc.sync_gradients:
                    updates += 1
                    skill = correlation(mu.detach()[:1 + seen % 2], length[:1 + seen % 2])
                    if acc.is_main_process:
                        print(f"epoch {epoch} update {updates:2d} loss {loss.item():.6f} r {skill.item():.3f}", flush=True)
        if acc.is_main_process:
            print(f"epoch {epoch} mean loss {total / seen:.6f}", flush=True)
    acc.wait_for_everyone()
    weights = sum(p.detach().double().sum().item() for p in model.parameters())
    acc.print(f"weights {weights:.6f}", flush=True)
    acc.end_training()


if __name__ == "__main__":
    main()
