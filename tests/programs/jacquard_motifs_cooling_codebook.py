# Drafts for a 16-shaft loom: learn a small book of motifs and propose new drafts from it.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
SIZE, MOTIFS, DIM = 16, 10, 6


def woven(n, gen):
    """Drawdown = threading x tie-up x treadling, as ink on point paper."""
    cloth = []
    for _ in range(n):
        shafts = int(torch.randint(3, 7, (1,), generator=gen))
        straight = torch.arange(SIZE) % shafts
        point = shafts - 1 - (torch.arange(SIZE) % (2 * shafts - 2) - shafts + 1).abs()
        threading = straight if torch.rand(1, generator=gen) < 0.5 else point
        treadling = straight if torch.rand(1, generator=gen) < 0.5 else point
        tieup = (torch.rand(shafts, shafts, generator=gen) < 0.5).float()
        cloth.append(tieup[threading][:, treadling])
    return torch.stack(cloth)[:, None]


class MotifBook(nn.Module):
    def __init__(self):
        super().__init__()
        self.motifs = nn.Parameter(torch.randn(MOTIFS, DIM) * 0.5)

    def forward(self, z, warmth):
        flat = z.permute(0, 2, 3, 1).reshape(-1, DIM)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.motifs.t() + self.motifs.pow(2).sum(1)
        member = torch.softmax(-distance / warmth, dim=1)
        usage = member.mean(0)
        spread = -(usage * usage.log()).sum()
        chosen = self.motifs[distance.argmin(1)]
        commit = F.mse_loss(flat, chosen.detach()) * 0.25 + F.mse_loss(chosen, flat.detach())
        out = flat + (chosen - flat).detach()
        b, _, h, w = z.shape
        return out.view(b, h, w, DIM).permute(0, 3, 1, 2), commit, spread


class Loom(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.ReLU(), nn.Conv2d(12, DIM, 3, 1, 1))
        self.book = MotifBook()
        self.up = nn.Sequential(nn.Conv2d(DIM, 12, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1))

    def forward(self, x, warmth):
        q, commit, spread = self.book(self.down(x), warmth)
        return self.up(q), commit, spread


loom = Loom()
gen = torch.Generator().manual_seed(4)
opt = torch.optim.AdamW(loom.parameters(), lr=4e-3)
warmth = 1.0
for pick in range(1, 37):
    draft = woven(12, gen)
    ink, commit, spread = loom(draft, warmth)
    recon = F.binary_cross_entropy_with_logits(ink, draft)
    loss = recon + commit - 0.05 * spread
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"pick {pick:3d} | warmth {warmth:.5f} | drafts {recon.item():.4f} | total {loss.item():.4f}")
    warmth *= 0.75

with torch.no_grad():
    total = sum(w.square().sum() for w in loom.parameters())
print("norm of the loom squared:", float(total))
