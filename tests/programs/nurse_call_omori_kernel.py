# nurse call bells: self-exciting point process with a power-law (Omori) memory
# one gradient step per day of the log file, three wards a day
import math
import torch

torch.manual_seed(8)
WARDS = 3
DAYS = 42
MINUTES = 24 * 60.0


def simulate_day(gen, ward, day):
    """Immigrants and one generation of follow-up calls; the pager stores tenths of a minute."""
    n = int(torch.poisson(torch.tensor(9.0 + 2 * ward), generator=gen))
    times = (torch.rand(n, generator=gen) * MINUTES).tolist()
    for t in list(times):
        if torch.rand(1, generator=gen).item() < 0.4:
            u = torch.rand(1, generator=gen).item()
            times.append(t + 60.0 * u ** 3 + 0.3)
    times = sorted({round(t, 1) for t in times if t < MINUTES})
    if ward == 1 and day == 18:
        # fire drill: bed bell and corridor bell were pressed together
        times = sorted(times + [times[5]])
    return times


def read_log():
    gen = torch.Generator().manual_seed(31)
    for day in range(DAYS):
        yield day, [simulate_day(gen, ward, day) for ward in range(WARDS)]


def pad(wards):
    width = max(len(w) for w in wards)
    t = torch.zeros(len(wards), width)
    m = torch.zeros(len(wards), width, dtype=torch.bool)
    for i, w in enumerate(wards):
        t[i, :len(w)] = torch.tensor(w)
        m[i, :len(w)] = True
    return t, m


params = {
    "log_base": torch.full((WARDS,), math.log(0.005)).requires_grad_(),
    "log_excite": torch.full((WARDS,), -4.0).requires_grad_(),
    "decay_raw": torch.zeros(WARDS, requires_grad=True),
    "rhythm": torch.zeros(WARDS, 4, requires_grad=True),
}


def rhythm_of(t, coef):
    """Daily rhythm of the base rate, a short Fourier series in log space."""
    a = 2 * math.pi * t / MINUTES
    waves = torch.stack([a.sin(), a.cos(), (2 * a).sin(), (2 * a).cos()], -1)
    return (waves * coef[:, None]).sum(-1)


def intensity(t, m, prm):
    gap = t[:, :, None] - t[:, None, :]                       # gap[i, j] = t_i - t_j
    earlier = torch.ones(t.shape[1], t.shape[1]).tril(-1).bool() & m[:, :, None] & m[:, None, :]
    gap = torch.where(earlier, gap, torch.ones_like(gap))
    power = torch.sigmoid(prm["decay_raw"])[:, None, None]
    memory = gap ** -power
    memory = torch.where(earlier, memory, torch.zeros_like(memory)).sum(-1)
    base = (prm["log_base"][:, None] + rhythm_of(t, prm["rhythm"])).exp()
    return base + prm["log_excite"].exp()[:, None] * memory


def compensator(t, m, prm):
    grid = torch.linspace(0, MINUTES, 97).expand(WARDS, -1)
    base = (prm["log_base"][:, None] + rhythm_of(grid, prm["rhythm"])).exp()
    base_part = torch.trapezoid(base, grid, dim=-1)
    power = torch.sigmoid(prm["decay_raw"])[:, None]
    left = torch.where(m, MINUTES - t, torch.ones_like(t)).clamp(min=0.05)
    follow = left ** (1 - power) / (1 - power)
    follow = torch.where(m, follow, torch.zeros_like(follow)).sum(-1)
    return base_part + prm["log_excite"].exp() * follow


def negative_log_likelihood(t, m, prm):
    rate = intensity(t, m, prm)
    log_rate = torch.where(m, rate, torch.ones_like(rate)).log()
    return (compensator(t, m, prm) - log_rate.sum(-1)).mean() / t.shape[1]


opt = torch.optim.Adam([
    {"params": [params["log_base"], params["log_excite"]], "lr": 0.05},
    {"params": [params["decay_raw"]], "lr": 0.02},
    {"params": [params["rhythm"]], "lr": 0.01},
], betas=(0.9, 0.98))

for day, wards in read_log():
    t, m = pad(wards)
    nll = negative_log_likelihood(t, m, params)
    opt.zero_grad()
    nll.backward()
    opt.step()
    print("day %2d calls %3d nll %.7f" % (day + 1, int(m.sum()), nll.item()), flush=True)

print("%.7f" % sum(v.detach().abs().sum().item() for v in params.values()), flush=True)
