"""Exchangeabilities of a 20 state amino acid model from counted pairs of aligned proteins.

Q is reversible and scaled to one expected substitution per unit of t, so P(t) = expm(Q t) comes from the
eigenvectors of the symmetric matrix D^1/2 Q D^-1/2, once for all pairs of a batch.
Each record is a pair of species: its divergence time and the 20 x 20 table of aligned residues.
"""
import torch

STATES = 20
PAIRS = 96
BATCH = 6
STEPS = 48


def rate_matrix(log_ex, log_freq):
    """GTR rate matrix from the upper triangle of exchangeabilities and the frequencies."""
    iu = torch.triu_indices(STATES, STATES, offset=1)
    s = torch.zeros(STATES, STATES, dtype=log_ex.dtype)
    s = s.index_put((iu[0], iu[1]), log_ex.exp())
    s = s + s.t()
    pi = torch.softmax(log_freq, 0)
    q = s * pi
    q = q - torch.diag(q.sum(1))
    speed = -(pi * q.diagonal()).sum()
    return q / speed, pi


def simulate(gen):
    n = STATES * (STATES - 1) // 2
    # conservative exchanges are quick, radical ones are slow
    true_ex = 2.2 * torch.randn(n, generator=gen, dtype=torch.float64) - 1.0
    true_freq = 0.6 * torch.randn(STATES, generator=gen, dtype=torch.float64)
    q, pi = rate_matrix(true_ex, true_freq)
    times, tables = [], []
    for k in range(PAIRS):
        # most pairs come from different families; a few are strains of one species
        if k % 40 == 37:
            t = 0.0002 + 0.0001 * torch.rand(1, generator=gen).item()
        else:
            t = 0.35 + 1.2 * torch.rand(1, generator=gen).item()
        p = torch.linalg.matrix_exp(q * t).clamp_min(0)
        joint = (pi[:, None] * p).flatten()
        sites = torch.multinomial(joint, 400, replacement=True, generator=gen)
        table = torch.bincount(sites, minlength=STATES * STATES).view(STATES, STATES)
        times.append(t)
        tables.append((table + table.t()).float() / 2)
    return torch.tensor(times), torch.stack(tables)


def transition(q, pi, times):
    root = pi.sqrt()
    sym = root[:, None] * q / root[None, :]
    lam, u = torch.linalg.eigh(0.5 * (sym + sym.t()))
    left, right = u / root[:, None], u.t() * root[None, :]
    growth = torch.exp(lam[None, :] * times[:, None])
    return (left[None] * growth[:, None, :]) @ right


def pair_log_likelihood(log_ex, log_freq, times, tables):
    q, pi = rate_matrix(log_ex, log_freq)
    p = transition(q, pi, times)
    log_p = p.log()
    sites = tables.sum((1, 2))
    ll = (tables * (pi.log()[None, :, None] + log_p)).sum((1, 2))
    return (ll / sites).mean()


def main():
    gen = torch.Generator().manual_seed(7)
    times, tables = simulate(gen)
    log_ex = (0.5 * torch.randn(STATES * (STATES - 1) // 2, generator=gen)).requires_grad_()
    log_freq = torch.zeros(STATES, requires_grad=True)
    opt = torch.optim.Adam([{"params": [log_ex], "lr": 0.25}, {"params": [log_freq], "lr": 0.05}])
    order = torch.arange(PAIRS)
    for step in range(STEPS):
        lo = step * BATCH % PAIRS
        idx = order[lo:lo + BATCH]
        loss = -pair_log_likelihood(log_ex, log_freq, times[idx], tables[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"iter {step + 1:3d}  -loglik per site {loss.item():.5f}", flush=True)
    print(f"norm of exchangeabilities {log_ex.detach().norm().item():.5f}", flush=True)


if __name__ == "__main__":
    main()
