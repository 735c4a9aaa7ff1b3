"""Autoencoder for scanned plaster moulds in Lightning, encoder and decoder with an optimizer and a schedule each."""
import logging
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L  # noqa: E402


def mould_profiles(n=640, width=40):
    g = torch.Generator().manual_seed(4)
    x = torch.linspace(0, 1, width)
    centre = 0.3 + 0.4 * torch.rand(n, 1, generator=g)
    depth = 0.5 + torch.rand(n, 1, generator=g)
    wall = 0.05 + 0.1 * torch.rand(n, 1, generator=g)
    profile = -depth * torch.exp(-((x - centre) / wall) ** 2)
    return profile + 0.02 * torch.randn(n, width, generator=g)


class Moulds(L.LightningModule):
    warm = 4

    def __init__(self, width=40, code=6):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Sequential(nn.Linear(width, 32), nn.LeakyReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.LeakyReLU(), nn.Linear(32, width))
        self.seen = 0

    def training_step(self, batch, batch_idx):
        (profile,) = batch
        opts, scheds = self.optimizers(), self.lr_schedulers()
        loss = nn.functional.mse_loss(self.decoder(self.encoder(profile)), profile)
        for opt in opts:
            opt.zero_grad()
        self.manual_backward(loss)
        for opt, sched in zip(opts, scheds):
            opt.step()
            sched.step()
        self.seen += 1
        print(f"batch {self.seen:>3} | loss {loss.item():.5f}")

    def configure_optimizers(self):
        enc = torch.optim.Adam(self.encoder.parameters(), lr=0.02)
        dec = torch.optim.Adam(self.decoder.parameters(), lr=0.02)
        slow = torch.optim.lr_scheduler.LambdaLR(enc, lambda s: (s + 1) / self.warm)
        fast = torch.optim.lr_scheduler.LambdaLR(dec, lambda s: ((s + 1) / self.warm) ** 2)
        return [enc, dec], [slow, fast]


def main():
    L.seed_everything(12, verbose=False)
    loader = DataLoader(TensorDataset(mould_profiles()), batch_size=32, shuffle=True)
    module = Moulds()
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, loader)
    print("absolute weights summed:", sum(p.detach().abs().sum().item() for p in module.parameters()))


if __name__ == "__main__":
    main()
