"""Wood lactation curves for milk recording herds, hierarchical, mean-field VI.

    yield(t) = exp(log_a + b * log t - c * t)      (Wood 1967)

log_a, b and c vary by herd around population means; the posterior is a
diagonal normal, fitted with reparametrised draws, one visit at a time.
"""
import torch
from torch.func import vmap

N_HERDS = 6
VISIT_SIZE = 48
VISITS = 45
DRAWS = 4
ROBOT_HERD = 5          # this farm bought a milking robot
ROBOT_FROM_VISIT = 13   # ... and its fresh cows are reported from then on

torch.manual_seed(1967)
sim = torch.Generator().manual_seed(305)

TRUE_MEAN = torch.tensor([2.6, 0.22, 0.32])
TRUE_SD = torch.tensor([0.15, 0.03, 0.04])


def simulate_visits():
    herd_effects = TRUE_MEAN + TRUE_SD * torch.randn(N_HERDS, 3, generator=sim)
    visits = []
    for visit in range(1, VISITS + 1):
        herd = torch.randint(0, N_HERDS, (VISIT_SIZE,), generator=sim)
        dim = torch.randint(5, 306, (VISIT_SIZE,), generator=sim)
        if visit >= ROBOT_FROM_VISIT:
            fresh = torch.randint(0, 45, (VISIT_SIZE,), generator=sim)
            dim = torch.where(herd == ROBOT_HERD, fresh, dim)
        days = dim.float()
        la, b, c = herd_effects[herd].unbind(-1)
        milk = torch.exp(la) * days ** b * torch.exp(-c * days / 100)
        milk = (milk + 1.5 * torch.randn(VISIT_SIZE, generator=sim)).clamp(min=0)
        visits.append((herd, days, milk))
    return visits


class MeanField:
    """All latent variables in one flat vector: 3 means, 3 log scales, herds x 3, log noise."""

    def __init__(self):
        self.size = 3 + 3 + N_HERDS * 3 + 1
        loc = torch.zeros(self.size)
        loc[:3] = torch.tensor([2.0, 0.1, 0.2])
        loc[3:6] = -1.5
        loc[-1] = 1.0
        self.loc = loc.requires_grad_()
        self.log_sd = torch.full((self.size,), -3.0, requires_grad=True)

    def draw(self, n):
        eps = torch.randn(n, self.size)
        return self.loc + self.log_sd.exp() * eps

    def entropy(self):
        return self.log_sd.sum()


def log_normal(x, loc, scale):
    return -0.5 * ((x - loc) / scale) ** 2 - torch.log(scale)


def wood_curve(coef, days):
    log_a, b, c = coef.unbind(-1)
    return torch.exp(log_a + b * torch.log(days) - c * days / 100)


def log_joint(z, herd, days, milk, n_total):
    mean, log_scale = z[:3], z[3:6]
    raw = z[6:-1].view(N_HERDS, 3)
    noise = z[-1].exp()
    coef = mean + log_scale.exp() * raw          # non-centred
    prior = log_normal(mean, torch.tensor([2.5, 0.2, 0.3]), torch.ones(3)).sum()
    prior = prior + log_normal(log_scale, torch.full((3,), -2.0), torch.ones(3)).sum()
    prior = prior + log_normal(raw, torch.zeros(()), torch.ones(())).sum()
    prior = prior + log_normal(z[-1], torch.tensor(0.5), torch.ones(()))
    fitted = wood_curve(coef[herd], days)
    lik = log_normal(milk, fitted, noise).sum()
    return prior + lik * (n_total / milk.shape[0])


def main():
    visits = simulate_visits()
    n_total = VISITS * VISIT_SIZE
    q = MeanField()
    opt = torch.optim.Adam([{"params": [q.loc], "lr": 0.03}, {"params": [q.log_sd], "lr": 0.01}])
    per_draw = vmap(log_joint, in_dims=(0, None, None, None, None))

    for visit, (herd, days, milk) in enumerate(visits, 1):
        z = q.draw(DRAWS)
        elbo = per_draw(z, herd, days, milk, n_total).mean() + q.entropy()
        loss = -elbo / n_total
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"visit {visit:3d}  records {len(milk)}  -elbo/n {loss.item():.6f}", flush=True)

    total = q.loc.detach().abs().sum() + q.log_sd.detach().abs().sum()
    print(f"{total.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
