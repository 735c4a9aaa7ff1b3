# VAE of pebble measurements; the prior of the latent is a mixture of gaussians that is moved, every few steps, to
# where the codes of the last batches lie (one hard k-means round, as in the old script of the geology group).
import argparse
import collections
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MixturePrior(nn.Module):
    def __init__(self, k, dim):
        super().__init__()
        self.register_buffer("means", torch.randn(k, dim) * 0.7)
        self.register_buffer("logvars", torch.zeros(k, dim))
        self.register_buffer("share", torch.full((k,), 1.0 / k))

    def component_log_prob(self, z):
        d = z[:, None, :] - self.means
        lp = -0.5 * (self.logvars + d * d / self.logvars.exp() + math.log(2 * math.pi)).sum(-1)
        return lp + self.share.log()

    def log_prob(self, z):
        return torch.logsumexp(self.component_log_prob(z), dim=1)

    @torch.no_grad()
    def spread_out(self, z):
        """Farthest-first start, so that no two components begin at one place."""
        chosen = [z[0]]
        while len(chosen) < len(self.means):
            chosen.append(z[torch.cdist(z, torch.stack(chosen)).amin(1).argmax()])
        self.means.copy_(torch.stack(chosen))

    @torch.no_grad()
    def refresh(self, z):
        owner = torch.cdist(z, self.means).argmin(1)
        for k in range(len(self.means)):
            mine = z[owner == k]
            self.means[k] = mine.mean(0)
            self.logvars[k] = mine.var(0, unbiased=False).clamp(0.05, 4.0).log()
        counts = torch.bincount(owner, minlength=len(self.means)).float()
        self.share.copy_((counts + 1) / (counts + 1).sum())


class PebbleVAE(nn.Module):
    def __init__(self, n_in, n_z, k):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n_in, 48), nn.SiLU(), nn.Linear(48, 2 * n_z))
        self.dec = nn.Sequential(nn.Linear(n_z, 48), nn.SiLU(), nn.Linear(48, n_in))
        self.prior = MixturePrior(k, n_z)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        logvar = logvar.clamp(-6, 3)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        rec = F.mse_loss(self.dec(z), x, reduction="none").sum(-1)
        log_q = -0.5 * (logvar + (z - mu) ** 2 / logvar.exp() + math.log(2 * math.pi)).sum(-1)
        return rec, log_q - self.prior.log_prob(z), mu


KINDS = torch.tensor([[2.0, 0, 0, 1, 0, 0, 1, 0], [0, 2.0, 0, 0, 1, 0, 0, 1], [0, 0, -2.0, 1, 0, 1, 0, 0],
                      [-2.0, -2.0, 0, 0, 0, 1, 0, 1]])


def scoop(beach, n, gen):
    """n pebbles; `beach` counts the scoops along the shore. Past the groyne (27) there is flint and hardly else."""
    if beach < 27:
        kind = torch.randint(0, 4, (n,), generator=gen)
    else:
        kind = torch.zeros(n, dtype=torch.long)
    return KINDS[kind] + 0.3 * torch.randn(n, 8, generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--refresh", type=int, default=8)
    ap.add_argument("--components", type=int, default=4)
    ap.add_argument("--beta", type=float, default=0.1)
    a = ap.parse_args()
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(12)
    vae = PebbleVAE(8, 3, a.components)
    opt = torch.optim.Adam(vae.parameters(), lr=3e-3)
    vae.prior.spread_out(vae.enc(scoop(0, 64, gen)).chunk(2, -1)[0])
    recent = collections.deque(maxlen=4)
    for step in range(1, a.steps + 1):
        if step % a.refresh == 0:
            vae.prior.refresh(torch.cat(list(recent)))
        x = scoop(step, 64, gen)
        rec, kl, mu = vae(x)
        loss = (rec + a.beta * kl).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 5.0)
        opt.step()
        recent.append(mu.detach())
        print(f"{step}\t{loss.item():.7f}\t{rec.mean().item():.5f}\t{kl.mean().item():.5f}", flush=True)
    print("%.6f" % sum(p.detach().abs().sum().item() for p in vae.parameters()))


if __name__ == "__main__":
    main()
