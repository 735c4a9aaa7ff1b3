"""Who speaks when in a podcast. An encoder (trained by Adam) under a mixture layer (trained by EM, by hand)."""
import torch
from torch import nn

SEATS, DIM = 5, 3


class SpeakerMixture(nn.Module):
    """means and spreads are parameters, but nobody differentiates them: they are overwritten"""

    def __init__(self):
        super().__init__()
        self.means = nn.Parameter(torch.randn(SEATS, DIM), requires_grad=False)
        self.log_std = nn.Parameter(torch.zeros(SEATS, DIM), requires_grad=False)
        self.register_buffer("share", torch.full((SEATS,), 1.0 / SEATS))

    def log_joint(self, z, present):
        log_prior = torch.where(present, self.share.log(), -torch.inf)
        gap = (z[:, None, :] - self.means) * torch.exp(-self.log_std)
        log_pdf = (-0.5 * gap.square() - self.log_std - 0.9189385).sum(-1)
        return log_pdf + log_prior

    def forward(self, z, present):
        joint = self.log_joint(z, present)
        return joint.logsumexp(dim=1), joint.softmax(dim=1).detach()

    @torch.no_grad()
    def maximise(self, z, resp, keep=0.7):
        heard = resp.sum(0)
        fresh = heard > 1e-3
        mean = resp.T @ z / heard[:, None]                    # rows of absent speakers are not used
        var = resp.T @ z.square() / heard[:, None] - mean.square()
        mean = torch.where(fresh[:, None], keep * self.means + (1 - keep) * mean, self.means)
        log_std = torch.where(fresh[:, None], 0.5 * var.clamp(min=1e-2).log(), self.log_std)
        self.means.copy_(mean)
        self.log_std.copy_(keep * self.log_std + (1 - keep) * log_std)
        self.share.copy_((keep * self.share + (1 - keep) * heard / heard.sum()).clamp(min=0.02))
        self.share.div_(self.share.sum())
        return int(fresh.sum())


def episodes(n, gen):
    voices = 1.5 * torch.randn(SEATS, 20, generator=gen)
    for e in range(n):
        guests = torch.randperm(SEATS, generator=gen)[: 1 + e % 3]
        present = torch.zeros(SEATS, dtype=torch.bool)
        present[guests] = True
        who = guests[torch.randint(len(guests), (48,), generator=gen)]
        yield voices[who] + 0.4 * torch.randn(48, 20, generator=gen), present, who


def main():
    torch.manual_seed(9)
    encoder = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, DIM))
    decoder = nn.Linear(DIM, 20)
    mixture = SpeakerMixture()
    opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    worst = -float("inf")
    for number, (frames, present, who) in enumerate(episodes(35, torch.Generator().manual_seed(9)), 1):
        z = encoder(frames)
        log_lik, resp = mixture(z, present)
        loss = 0.05 * (decoder(z) - frames).square().sum(1).mean() - log_lik.mean()
        if number % 3 != 1:
            opt.zero_grad()
            loss.backward()
            opt.step()
        heard = mixture.maximise(z.detach(), resp)
        worst = max(worst, loss.item())
        purity = (resp.argmax(1) == who).float().mean().item()
        print(f"episode {number} loss {loss.item():+.4f} worst {worst:+.4f} heard {heard} hit {purity:.2f}")
    everything = [*encoder.parameters(), *decoder.parameters(), *mixture.parameters()]
    print("sum of squares", sum(p.detach().square().sum().item() for p in everything))


if __name__ == "__main__":
    main()
