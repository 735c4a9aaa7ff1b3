# Topics of package leaflets. Variational topic model with a Dirichlet posterior; the Dirichlet is drawn through
# gamma variables with the small-shape approximation of the inverse gamma CDF:  g = (u * a * Gamma(a)) ** (1 / a)
import torch as th
from torch.nn import functional as F

V, K, DOCS = 120, 6, 24
PRIOR = th.full((K,), 0.3)

rng = th.Generator().manual_seed(31)
true_topics = th.distributions.Dirichlet(th.full((V,), 0.08))
th.manual_seed(31)
true_topics = true_topics.sample((K,))


def fetch(week):
    mix = th.distributions.Dirichlet(th.full((K,), 0.25)).sample((DOCS,))
    words = th.randint(40, 130, (DOCS,))
    if week == 21:
        words[5] = 30000                      # assessment report of the agency
    counts = th.stack([th.bincount(th.multinomial(m @ true_topics, int(n), replacement=True), minlength=V)
                       for m, n in zip(mix, words)])
    return counts.float()


encoder = th.nn.Sequential(th.nn.Linear(V, 32), th.nn.ReLU(), th.nn.Linear(32, K), th.nn.Softplus())
topic_words = th.nn.Parameter(0.1 * th.randn(K, V))
opt_enc = th.optim.Adam(encoder.parameters(), lr=3e-3)
opt_dec = th.optim.Adam([topic_words], lr=5e-2)


def draw_mixture(a):
    u = th.rand(a.shape)
    gamma_fn = th.exp(th.lgamma(a))
    g = (u * a * gamma_fn) ** (1 / a)
    return g / g.sum(1, keepdim=True)


def kl_to_prior(a):
    total = a.sum(1)
    return (th.lgamma(total) - th.lgamma(a).sum(1) - th.lgamma(PRIOR.sum()) + th.lgamma(PRIOR).sum()
            + ((a - PRIOR) * (th.digamma(a) - th.digamma(total)[:, None])).sum(1))


for week in range(1, 39):
    counts = fetch(week)
    conc = encoder(counts * 0.3) + 1e-3
    theta = draw_mixture(conc)
    word_probs = theta @ F.softmax(topic_words, dim=1)
    reconstruction = -(counts * th.log(word_probs + 1e-12)).sum(1) / counts.sum(1)
    kl = kl_to_prior(conc) / counts.sum(1)
    elbo_loss = (reconstruction + kl).mean()
    opt_enc.zero_grad()
    opt_dec.zero_grad()
    elbo_loss.backward()
    opt_enc.step()
    opt_dec.step()
    print("week", week, "| rec %.4f" % reconstruction.mean().item(), "| kl %.4f" % kl.mean().item(),
          "| mean conc %.3f" % conc.mean().item())

final = sum((w.detach() ** 2).sum() for w in [*encoder.parameters(), topic_words])
print("squared weights", float(final))
