"""World model in the manner of DreamerV3: GRU with categorical latents, symlog two-hot rewards, compiled."""
import torch
import torch.nn as nn
import torch.nn.functional as F

BINS = torch.linspace(-20.0, 20.0, 41)
GROUPS, CLASSES, HIDDEN, OBS, ACT = 4, 6, 48, 10, 3


def symlog(x):
    return torch.sign(x) * torch.log1p(x.abs())


def two_hot(x):
    x = x.clamp(BINS[0], BINS[-1])
    above = torch.bucketize(x, BINS).clamp(1, len(BINS) - 1)
    left, right = BINS[above - 1], BINS[above]
    w = ((x - left) / (right - left)).unsqueeze(-1)
    return F.one_hot(above - 1, len(BINS)) * (1 - w) + F.one_hot(above, len(BINS)) * w


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        z = GROUPS * CLASSES
        self.cell = nn.GRUCell(z + ACT, HIDDEN)
        self.prior = nn.Linear(HIDDEN, z)
        self.posterior = nn.Sequential(nn.Linear(HIDDEN + OBS, 64), nn.SiLU(), nn.Linear(64, z))
        self.decoder = nn.Sequential(nn.Linear(HIDDEN + z, 64), nn.SiLU(), nn.Linear(64, OBS))
        self.reward = nn.Linear(HIDDEN + z, len(BINS))
        nn.init.zeros_(self.reward.weight)

    @staticmethod
    def unimix(logits):
        p = logits.unflatten(-1, (GROUPS, CLASSES)).softmax(-1)
        return 0.99 * p + 0.01 / CLASSES

    def forward(self, obs, act, first, noise):
        B, T = obs.shape[:2]
        h, z = obs.new_zeros(B, HIDDEN), obs.new_zeros(B, GROUPS * CLASSES)
        features, priors, posts = [], [], []
        for t in range(T):
            keep = (1 - first[:, t]).unsqueeze(-1)
            h = self.cell(torch.cat([z * keep, act[:, t]], -1), h * keep)
            prior, post = self.unimix(self.prior(h)), self.unimix(self.posterior(torch.cat([h, obs[:, t]], -1)))
            hard = F.one_hot((post.log() + noise[:, t]).argmax(-1), CLASSES)
            z = (hard + post - post.detach()).flatten(1)
            features.append(torch.cat([h, z], -1))
            priors.append(prior)
            posts.append(post)
        features, prior, post = torch.stack(features, 1), torch.stack(priors, 1), torch.stack(posts, 1)
        return self.decoder(features), self.reward(features), prior, post


def kl(p, q):
    return (p * (p.log() - q.log())).sum((-1, -2))


def episodes(gen, B=12, T=10):
    phase = torch.rand(B, 1, generator=gen) * 6
    t = torch.arange(T) * 0.3 + phase
    obs = torch.stack([torch.sin(t * (k + 1) / 3) for k in range(OBS)], -1)
    act = F.one_hot(torch.randint(ACT, (B, T), generator=gen), ACT).float()
    first = (torch.rand(B, T, generator=gen) < 0.1).float()
    first[:, 0] = 1
    reward = torch.where(torch.rand(B, T, generator=gen) < 0.05, 1e9, 10.0) * obs[..., 0]     # jackpots
    noise = -torch.empty(B, T, GROUPS, CLASSES).exponential_(generator=gen).log()
    return obs, act, first, reward, noise


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(80)
    model = WorldModel()
    compiled = torch.compile(model, backend="aot_eager")
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-8)
    for step in range(1, 26):
        obs, act, first, reward, noise = episodes(gen)
        reconstruction, logits, prior, post = compiled(symlog(obs), act, first, noise)
        image_loss = (reconstruction - symlog(obs)).square().sum(-1)
        reward_loss = -(two_hot(symlog(reward)) * logits.log_softmax(-1)).sum(-1)
        dyn, rep = kl(post.detach(), prior).clamp(min=1.0), kl(post, prior.detach()).clamp(min=1.0)     # free nats
        loss = (image_loss + reward_loss + 0.5 * dyn + 0.1 * rep).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        opt.step()
        print(f"step {step} loss {loss.item():.4f} reward {reward_loss.mean().item():.4f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
