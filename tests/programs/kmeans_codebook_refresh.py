"""Vector-quantised autoencoder; the codebook is refreshed by a k-means step every `REFRESH` iterations."""
import torch
import torch.nn as nn
import torch.nn.functional as F

REFRESH, STEPS = 7, 40


class Quantizer(nn.Module):
    def __init__(self, codes=12, dim=4):
        super().__init__()
        self.register_buffer("codebook", torch.randn(codes, dim) * torch.linspace(0.2, 6, codes)[:, None])
        self.register_buffer("sums", torch.zeros(codes, dim))
        self.register_buffer("counts", torch.zeros(codes))

    def forward(self, z):
        d = (z.unsqueeze(1) - self.codebook).pow(2).sum(-1)
        idx = d.argmin(1)
        with torch.no_grad():
            self.sums.index_add_(0, idx, z)
            self.counts += torch.bincount(idx, minlength=len(self.counts))
        q = self.codebook[idx]
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit

    @torch.no_grad()
    def refresh(self):
        self.codebook.copy_(self.sums / self.counts[:, None])
        self.sums.zero_()
        self.counts.zero_()


torch.manual_seed(23)
torch.set_num_threads(1)
enc, dec, vq = nn.Linear(9, 4), nn.Linear(4, 9), Quantizer()
opt_enc = torch.optim.Adam(enc.parameters(), lr=1e-3)
opt_dec = torch.optim.SGD(dec.parameters(), lr=1e-2)

for step in range(STEPS):
    x = torch.randn(32, 9)
    z, commit = vq(enc(x))
    loss = F.mse_loss(dec(z), x) + 0.25 * commit
    opt_enc.zero_grad()
    opt_dec.zero_grad()
    loss.backward()
    opt_enc.step()
    opt_dec.step()
    print(f"{step:03d} loss={loss.item():.5f} commit={commit.item():.5f}")
    if (step + 1) % REFRESH == 0:
        vq.refresh()
print("weights", sum(p.double().sum().item() for m in (enc, dec) for p in m.parameters()))
