"""Set-points for a wind farm under a grid limit.

A small net proposes a set-point per turbine. The proposal is projected onto
    { p : 0 <= p <= cap,  sum p = budget }
(by bisection on the multiplier; differentiated with the implicit function theorem) and compared with
what the control room chose. Manual optimization: the net by AdamW, the turbine offsets by plain SGD.
"""
import logging
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
TURBINES, HOURS = 7, 16 * 42


class CappedSimplex(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, cap, budget):
        lo = (z - cap).min(1, keepdim=True).values - 1
        hi = z.max(1, keepdim=True).values
        for _ in range(48):
            tau = (lo + hi) / 2
            much = (z - tau).clamp(min=0).minimum(cap).sum(1, keepdim=True) > budget
            lo, hi = torch.where(much, tau, lo), torch.where(much, hi, tau)
        p = (z - hi).clamp(min=0).minimum(cap)
        ctx.save_for_backward(((p > 0) & (p < cap)).to(z.dtype))
        return p

    @staticmethod
    def backward(ctx, g):
        (free,) = ctx.saved_tensors
        mean = (g * free).sum(1, keepdim=True) / free.sum(1, keepdim=True)
        return free * (g - mean), None, None


class Projection(nn.Module):
    def forward(self, z, cap, budget):
        return CappedSimplex.apply(z, cap, budget)


class Dispatcher(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.proposal = nn.Sequential(nn.Linear(TURBINES + 1, 32), nn.SiLU(), nn.Linear(32, TURBINES))
        self.offset = nn.Parameter(torch.zeros(TURBINES))
        self.project = Projection()

    def training_step(self, batch, batch_idx):
        cap, budget, chosen = batch
        z = self.proposal(torch.cat([cap, budget / TURBINES], dim=1)) + self.offset
        loss = (self.project(z, cap, budget) - chosen).pow(2).sum(1).mean()
        for opt in self.optimizers():
            opt.zero_grad()
        self.manual_backward(loss)
        for opt in self.optimizers():
            opt.step()
        print(f"batch {batch_idx + 1:2d} loss {loss.item():.7f}")

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.proposal.parameters(), lr=3e-3),
                torch.optim.SGD([self.offset], lr=0.02)]


def archive():
    g = torch.Generator().manual_seed(77)
    cap = 0.3 + 0.7 * torch.rand(HOURS, TURBINES, generator=g)
    limit = cap.sum(1, keepdim=True) * (0.45 + 0.4 * torch.rand(HOURS, 1, generator=g))
    limit[16 * 21 + 5] = 99.0                                    # one hour without a limit
    budget = torch.minimum(limit, cap.sum(1, keepdim=True))
    wish = cap * (0.8 + 0.3 * torch.linspace(-1, 1, TURBINES))
    chosen = CappedSimplex.apply(wish, cap, budget)
    return TensorDataset(cap, budget, chosen)


if __name__ == "__main__":
    L.seed_everything(3, verbose=False)
    model = Dispatcher()
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
        trainer.fit(model, DataLoader(archive(), batch_size=16, shuffle=False))
    print("final", float(sum(p.detach().abs().sum() for p in model.parameters())))
