"""VQ-VAE on synthetic bird calls (mel columns), codebook by EMA, dead codes are revived from the batch.

The loss jumps when codes are revived; it comes down within two or three steps.
"""
import torch
import torch.nn.functional as F
from torch import nn

CONF = dict(codes=32, dim=12, decay=0.8, eps=1e-5, dead_below=0.35, revive_every=8,
            beta=0.25, lr=3e-3, steps=60, batch=24, frames=20, mels=16)


class EmaCodebook(nn.Module):
    def __init__(self, k, d, decay, eps):
        super().__init__()
        self.decay, self.eps, self.k = decay, eps, k
        self.register_buffer("codes", torch.randn(k, d))
        self.register_buffer("count", torch.zeros(k))
        self.register_buffer("total", torch.zeros(k, d))
        self.register_buffer("started", torch.tensor(False))

    @torch.no_grad()
    def start(self, z):
        pick = torch.randint(0, len(z), (self.k,))
        self.codes.copy_(z[pick])
        self.total.copy_(z[pick])
        self.count.fill_(1.0)
        self.started.fill_(True)

    @torch.no_grad()
    def learn(self, z, one_hot):
        self.count.lerp_(one_hot.sum(0), 1 - self.decay)
        self.total.lerp_(one_hot.t() @ z, 1 - self.decay)
        n = self.count.sum()
        smoothed = (self.count + self.eps) / (n + self.k * self.eps) * n   # Laplace, so that no code divides by 0
        self.codes.copy_(self.total / smoothed[:, None])

    @torch.no_grad()
    def revive(self, z, below):
        dead = self.count < below
        if dead.any():
            fresh = z[torch.randint(0, len(z), (int(dead.sum()),))]
            self.codes[dead], self.total[dead] = fresh, fresh
            self.count[dead] = 1.0
        return int(dead.sum())

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        if not self.started:
            self.start(flat.detach())
        dist = torch.cdist(flat.detach(), self.codes)
        ids = dist.argmin(-1)
        q = self.codes[ids].view_as(z)
        one_hot = F.one_hot(ids, self.k).float()
        if self.training:
            self.learn(flat.detach(), one_hot)
        use = one_hot.mean(0)
        perplexity = torch.exp(-(use * torch.log(use.clamp_min(1e-10))).sum())
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit, perplexity


class CallVAE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(c["mels"], 48, 3, padding=1), nn.GELU(), nn.Conv1d(48, c["dim"], 1))
        self.vq = EmaCodebook(c["codes"], c["dim"], c["decay"], c["eps"])
        self.dec = nn.Sequential(nn.Conv1d(c["dim"], 48, 3, padding=1), nn.GELU(), nn.Conv1d(48, c["mels"], 1))

    def forward(self, x):
        z = self.enc(x).transpose(1, 2)
        q, commit, ppl = self.vq(z)
        return self.dec(q.transpose(1, 2)), commit, ppl, z


def calls(c):
    """Sweeps over the mel axis; every 20 steps another species sings."""
    t = torch.linspace(0, 1, c["frames"])
    m = torch.arange(c["mels"]).float()
    step = 0
    while True:
        species = step // 20
        centre = 8 + 6 * torch.sin(6.28 * (t * (1 + species) + torch.rand(c["batch"], 1)))
        yield torch.exp(-((m[None, :, None] - centre[:, None, :]) ** 2) / 3) * (1 + 2 * species)
        step += 1


def main(c=CONF):
    torch.manual_seed(404)
    model = CallVAE(c)
    opt = torch.optim.Adam(model.parameters(), lr=c["lr"])
    source = calls(c)
    for step in range(1, c["steps"] + 1):
        x = next(source)
        y, commit, ppl, z = model(x)
        loss = F.mse_loss(y, x) + c["beta"] * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        note = ""
        if step % c["revive_every"] == 0:
            note = f" revived {model.vq.revive(z.detach().reshape(-1, c['dim']), c['dead_below'])}"
        print(f"[{step:02d}] loss {loss.item():.6f} commit {commit.item():.6f} perplexity {ppl.item():.3f}{note}")
    print("total", f"{sum(p.sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
