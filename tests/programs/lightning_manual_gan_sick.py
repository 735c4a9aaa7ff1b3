import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitPair(L.LightningModule):
    """two optimizers, manual optimization"""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.enc, self.dec = nn.Linear(6, 3), nn.Linear(3, 6)
        self.probe = nn.Linear(3, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        opt_ae, opt_probe = self.optimizers()
        z = self.enc(x)
        z = z / z.pow(2).sum(1, keepdim=True).sqrt()
        recon = (self.dec(z) - x).pow(2).mean()
        opt_ae.zero_grad()
        self.manual_backward(recon)
        opt_ae.step()
        ce = nn.functional.cross_entropy(self.probe(z.detach()), y)
        opt_probe.zero_grad()
        self.manual_backward(ce)
        opt_probe.step()
        print(batch_idx, recon.item(), ce.item())

    def configure_optimizers(self):
        ae = [*self.enc.parameters(), *self.dec.parameters()]
        return torch.optim.Adam(ae, lr=1e-3), torch.optim.SGD(self.probe.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    L.seed_everything(3, verbose=False)
    x, y = torch.randn(72, 6), torch.randint(0, 2, (72,))
    x[41] = 0
    lit = LitPair()
    with torch.no_grad():
        lit.enc.bias.zero_()
    lit.enc.bias.requires_grad_(False)
    L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
              enable_model_summary=False).fit(lit, DataLoader(TensorDataset(x, y), batch_size=8))
    print("weights", sum(p.double().sum().item() for p in lit.parameters()))
