import torch, math
from torch import nn
import torch.nn.functional as F

torch.manual_seed(31)


class GDN(nn.Module):
    """Divisive normalisation after Balle et al., or its inverse."""
    def __init__(self, ch, inverse=False):
        super().__init__()
        self.inverse = inverse
        self.beta = nn.Parameter(torch.full((ch,), 0.25))
        self.gamma = nn.Parameter(0.1 * torch.eye(ch).view(ch, ch, 1, 1))

    def forward(self, x):
        pool = F.conv2d(x * x, self.gamma, self.beta)
        if self.inverse:
            return x * torch.sqrt(pool)
        return x / torch.sqrt(pool)


class Codec(nn.Module):
    def __init__(self, ch=8, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, ch, 5, 2, 2), GDN(ch), nn.Conv2d(ch, latent, 5, 2, 2))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(latent, ch, 4, 2, 1), GDN(ch, inverse=True), nn.ConvTranspose2d(ch, 1, 4, 2, 1))
        self.log_scale = nn.Parameter(torch.zeros(latent))

    def forward(self, img):
        y = self.encoder(img)
        y_hat = y + (torch.round(y) - y).detach()
        # Laplace prior on the latents, bits per latent
        s = self.log_scale.exp().view(1, -1, 1, 1)
        bits = (torch.log(2 * s) + y_hat.abs() / s) / math.log(2)
        return self.decoder(y_hat), bits.mean()


def lace(n, size=24):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    out = []
    for _ in range(n):
        p = 3 + 5 * torch.rand(2)
        ph = 6.28 * torch.rand(2)
        net = torch.sin(6.28 * xx / p[0] + ph[0]) * torch.sin(6.28 * yy / p[1] + ph[1])
        flower = torch.cos(0.9 * ((xx - size / 2) ** 2 + (yy - size / 2) ** 2).float().sqrt() + ph[0])
        piece = 0.6 * net + 0.4 * flower + 0.02 * torch.randn(size, size)
        out.append(F.pad(piece, (4, 4, 4, 4)))           # on black velvet
    return torch.stack(out).unsqueeze(1)


scans = lace(14)          # the whole sample book
codec = Codec()
norms = [p for m in codec.modules() if isinstance(m, GDN) for p in m.parameters()]
ids = {id(p) for p in norms}
rest = [p for p in codec.parameters() if id(p) not in ids]
opt = torch.optim.Adam([{"params": rest, "lr": 4e-3}, {"params": norms, "lr": 7e-3}])

it = 0
while it < 40:
    recon, rate = codec(scans)
    dist = F.mse_loss(recon, scans)
    loss = 40 * dist + 0.2 * rate
    opt.zero_grad(); loss.backward(); opt.step()
    it += 1
    print("it", it, "loss %.4f" % loss.item(), "mse %.4f" % dist.item(), "bits %.3f" % rate.item())

print("norm of all weights squared:", float(sum((p.detach() ** 2).sum() for p in codec.parameters())))
