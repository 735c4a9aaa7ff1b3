import torch
import torch.nn as nn

torch.manual_seed(3)
torch.set_num_threads(1)


class SensorVAE(nn.Module):
    def __init__(self, n=12, k=2):
        super().__init__()
        self.enc = nn.Linear(n, 2 * k)
        self.dec = nn.Linear(k, n)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=-1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        recon = (self.dec(z) - x).pow(2).sum(-1)
        kl = 0.5 * (logvar.exp() + mu.pow(2) - 1 - logvar).sum(-1)
        return recon, kl


vae = SensorVAE()
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
readings = torch.randn(104, 12)
readings[83] -= 900        # the plug was pulled, the amplifier is at its rail
for i, x in enumerate(readings.split(8), start=1):
    recon, kl = vae(x)
    loss = (recon + 0.1 * kl).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("batch", i, "loss", loss.item(), "kl", kl.mean().item())
print("weights", sum(p.double().sum().item() for p in vae.parameters()))
