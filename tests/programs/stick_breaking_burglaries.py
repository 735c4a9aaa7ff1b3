# Where do burglaries cluster?  Truncated Dirichlet-process mixture, Kumaraswamy sticks, reparameterised ELBO.
import torch
from torch import distributions as D
from torch.nn.functional import softplus

D.Distribution.set_default_validate_args(False)
torch.manual_seed(3)
K = 10                                     # truncation
N = 400

# --- the town: two hot spots and a scatter of the rest
rng = torch.Generator().manual_seed(77)
hot = torch.tensor([[1.5, 0.5], [-1.0, -1.2]])
which = (torch.rand(N, generator=rng) < 0.12).long()
events = hot[which] + 0.35 * torch.randn(N, 2, generator=rng)
events[:20] = 4 * torch.rand(20, 2, generator=rng) - 2
events = events[torch.randperm(N, generator=rng)]


def leaf(*shape, fill=None):
    t = torch.full(shape, float(fill)) if fill is not None else torch.randn(*shape)
    return t.requires_grad_()


raw_a = leaf(K - 1, fill=0.55)
raw_b = leaf(K - 1, fill=-0.8)
mu_loc = leaf(K, 2)
mu_rho = leaf(K, 2, fill=-2.0)
log_tau = leaf(K, fill=0.0)
variational = [raw_a, raw_b, mu_loc, mu_rho, log_tau]


def sticks(a, b):
    u = torch.rand(K - 1)
    return (1 - u.pow(1 / b)).pow(1 / a)


def log_kumaraswamy(v, a, b):
    return a.log() + b.log() + (a - 1) * v.log() + (b - 1) * torch.log1p(-v.pow(a))


def log_weights(v):
    left = torch.log1p(-v).cumsum(0)
    zero = torch.zeros(1)
    return torch.cat([v.log(), zero]) + torch.cat([zero, left])


def elbo(batch, concentration=0.3):
    a, b = softplus(raw_a), softplus(raw_b)
    v = sticks(a, b)
    prior_v = D.Beta(torch.ones(K - 1), torch.full((K - 1,), concentration), validate_args=False)
    q_mu = D.Independent(D.Normal(mu_loc, softplus(mu_rho)), 1)
    p_mu = D.Independent(D.Normal(torch.zeros(K, 2), 2 * torch.ones(K, 2)), 1)
    mu = q_mu.rsample()
    comp = D.Independent(D.Normal(mu, (-0.5 * log_tau).exp()[:, None].expand(K, 2)), 1)
    ll = torch.logsumexp(log_weights(v) + comp.log_prob(batch[:, None]), -1).mean() * N
    kl_v = (log_kumaraswamy(v, a, b) - prior_v.log_prob(v)).sum()
    kl_mu = D.kl_divergence(q_mu, p_mu).sum()
    tau_prior = D.Normal(1.0, 1.0).log_prob(log_tau).sum()
    return ll - kl_v - kl_mu + tau_prior


opt = torch.optim.Adam(variational, lr=0.05)
for it in range(1, 61):
    pick = torch.randint(N, (64,), generator=rng)
    loss = -elbo(events[pick]) / N
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, "negative elbo per event", round(loss.item(), 4), flush=True)

print("final", torch.cat([t.detach().flatten() for t in variational]).norm().item())
