"""Metric learning of mosaic tesserae: which stones were cut from the same slab? Lightning, manual optimization.

Two optimizers: the encoder every batch, the margin/colour probe head every batch with its own rate.
"""
import logging
import os
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ["TQDM_DISABLE"] = "1"
for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero",
             "lightning.fabric.utilities.distributed"):
    logging.getLogger(name).setLevel(logging.ERROR)

import torch
import lightning as L
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TesseraPairs(Dataset):
    """Pairs of colour/texture descriptors; label 1 = same slab."""

    def __init__(self, n=480, dim=18, slabs=12, seed=330):
        g = torch.Generator().manual_seed(seed)
        centre = torch.randn(slabs, dim, generator=g)
        a = torch.randint(slabs, (n,), generator=g)
        same = torch.rand(n, generator=g) < 0.5
        b = torch.where(same, a, (a + 1 + torch.randint(slabs - 1, (n,), generator=g)) % slabs)
        self.left = centre[a] + 0.3 * torch.randn(n, dim, generator=g)
        self.right = centre[b] + 0.3 * torch.randn(n, dim, generator=g)
        self.same, self.slab = same.float(), a
        # the conservator photographed stone 434 once and entered it on both sides of the sheet
        self.right[434], self.same[434] = self.left[434], 1.0

    def __len__(self):
        return len(self.left)

    def __getitem__(self, i):
        return self.left[i], self.right[i], self.same[i], self.slab[i]


def euclid(u, v):
    return (u - v).pow(2).sum(-1).sqrt()


class SlabMatcher(L.LightningModule):
    def __init__(self, dim=18, emb=8, slabs=12, margin=1.5):
        super().__init__()
        self.automatic_optimization = False
        self.margin = margin
        self.encoder = nn.Sequential(nn.Linear(dim, 32), nn.Mish(), nn.Linear(32, emb))
        self.probe = nn.Linear(emb, slabs)

    def configure_optimizers(self):
        return (torch.optim.NAdam(self.encoder.parameters(), lr=3e-3),
                torch.optim.SGD(self.probe.parameters(), lr=0.2))

    def contrastive(self, u, v, same):
        d = euclid(u, v)
        pull = same * d
        push = (1 - same) * torch.relu(self.margin - d).square()
        return (pull + push).mean()

    def training_step(self, batch, batch_idx):
        left, right, same, slab = batch
        enc_opt, probe_opt = self.optimizers()
        u, v = self.encoder(left), self.encoder(right)
        metric = self.contrastive(u, v, same)
        # the probe must not shape the embedding
        probe = nn.functional.cross_entropy(self.probe(u.detach()), slab)
        loss = metric + probe
        enc_opt.zero_grad()
        probe_opt.zero_grad()
        self.manual_backward(loss)
        enc_opt.step()
        probe_opt.step()
        return {"loss": loss.detach(), "metric": metric.detach()}


class Ledger(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        mean = trainer.strategy.reduce(outputs["loss"], reduce_op="mean")
        if trainer.is_global_zero:
            print(f"batch {batch_idx + 1:2d} loss {mean.item():.6f} metric {outputs['metric'].item():.6f}", flush=True)

    def on_train_end(self, trainer, module):
        if trainer.is_global_zero:
            total = sum(p.detach().double().sum() for p in module.parameters())
            print(f"fitted; parameters sum to {total.item():.6f}", flush=True)


def main():
    L.seed_everything(41, verbose=False)
    loader = DataLoader(TesseraPairs(), batch_size=8, shuffle=True)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = L.Trainer(
            strategy="ddp", accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[Ledger()], default_root_dir=scratch,
        )
        trainer.fit(SlabMatcher(), loader)


if __name__ == "__main__":
    main()
