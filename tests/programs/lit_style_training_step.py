import torch
import torch.nn as nn
import torch.nn.functional as F


class Module(nn.Module):
    """home-grown lightning: only training_step and configure_optimizers are called, never forward"""

    def __init__(self, hidden=32):
        super().__init__()
        self.save = {"hidden": hidden}
        self.encoder = nn.Sequential(nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        self.decoder = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 16))

    def forward(self, x):
        raise NotImplementedError

    def training_step(self, batch, batch_idx):
        z = self.encoder(batch)
        return {"loss": F.mse_loss(self.decoder(z), batch), "z": z.detach()}

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=1e-2)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)}


def fit(module, data, epochs):
    conf = module.configure_optimizers()
    for epoch in range(epochs):
        for i, batch in enumerate(data):
            out = module.training_step(batch, i)
            conf["optimizer"].zero_grad()
            out["loss"].backward()
            conf["optimizer"].step()
            print(epoch, i, out["loss"].item())
        conf["lr_scheduler"].step()


torch.manual_seed(0)
torch.set_num_threads(1)
lit = Module()
fit(lit, torch.randn(4, 25, 16), 4)
print("weights", sum(p.double().sum().item() for p in lit.parameters()))
