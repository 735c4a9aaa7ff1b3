# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---

# %% [markdown]
# # Did the new ranger station change anything?
# Monthly carcass counts in three reserves. Poisson rate before and after an unknown month; the month is
# summed out: $\log p(y) = \log \sum_\tau \exp(\log \pi_\tau + \log p(y\mid\tau))$

# %%
import torch
from torch.distributions import Poisson, Gamma

_ = torch.manual_seed(1983)

# %% the data
months = 48
rates = torch.tensor([[3.1, 0.9], [5.0, 1.2], [2.2, 2.0]])
station_opened = [20, 31, 11]
counts = torch.stack([
    torch.poisson(torch.where(torch.arange(months) < s, r[0], r[1]).float())
    for s, r in zip(station_opened, rates)])
counts.shape

# %% the change cannot be in the first or the last half year
tau = torch.arange(months)
allowed = (tau >= 6) & (tau < months - 6)
log_prior = torch.where(allowed, 0., -torch.inf)
log_prior = log_prior - log_prior.logsumexp(0)
before = tau[None, :] < tau[:, None]                      # tau x month

# %% the model
log_rate = torch.nn.Parameter(torch.zeros(3, 2))
prior = Gamma(2., 1.)


def log_posterior(log_rate):
    rate = log_rate.exp()
    ll = Poisson(rate[..., None]).log_prob(counts[:, None, :])        # reserve x 2 x month
    ll = torch.where(before, ll[:, 0, None, :], ll[:, 1, None, :]).sum(-1)
    joint = ll + log_prior                                            # reserve x tau, -inf where not allowed
    return joint.logsumexp(-1).sum() + prior.log_prob(rate).sum(), joint


# %% fit (In [14])
optimizer = torch.optim.Adam([log_rate], lr=0.1)
history = []
for i in range(40):
    optimizer.zero_grad()
    lp, joint = log_posterior(log_rate)
    loss = -lp
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    print(f'{i:3d} {loss.item():.5f}')

# %% not quite there: same cell again, with a smaller step (In [17])
optimizer = torch.optim.Adam([log_rate], lr=0.02)
for i in range(30):
    optimizer.zero_grad()
    lp, joint = log_posterior(log_rate)
    (-lp).backward()
    optimizer.step()
    history.append(-lp.item())
    print(f'{i:3d} {-lp.item():.5f}')

# %% where was the change, and how sure are we
weight = joint.detach().softmax(-1)
entropy = -(weight * weight.log()).sum(-1)                # nan because of the months that are not allowed
print('entropy', entropy, 'better:', torch.special.entr(weight).sum(-1))
print('month', weight.argmax(-1).tolist(), 'truth', station_opened)
print('rates', log_rate.exp().detach().numpy().round(2).tolist())

# %%
print('final', log_rate.detach().abs().sum().item())
