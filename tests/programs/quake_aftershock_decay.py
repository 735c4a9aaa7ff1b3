import numpy as np
import torch

SPAN = 40.0            # days per sequence
rng = np.random.default_rng(12)


def synth_sequence():
    """A main shock at day 0 and aftershocks by thinning of K (t + c)^-p, magnitudes by Gutenberg-Richter."""
    times, mags = [0.0], [float(rng.uniform(5.5, 6.5))]
    t = 0.0
    while t < SPAN and len(times) < 80:
        bound = 0.4 + 9.0 * (t + 0.05) ** -0.75
        t += rng.exponential(1 / bound)
        if t < SPAN and rng.random() < 0.95:
            times.append(t)
            mags.append(3.0 + float(rng.exponential(0.4)))
    return torch.tensor(times), torch.tensor(mags)


catalogue = [synth_sequence() for _ in range(24)]


class OmoriUtsu(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_mu = torch.nn.Parameter(torch.tensor(-1.5))
        self.log_k = torch.nn.Parameter(torch.tensor(-1.0))
        self.log_c = torch.nn.Parameter(torch.tensor(-2.5))
        self.alpha = torch.nn.Parameter(torch.tensor(0.8))
        self.p = torch.nn.Parameter(torch.tensor(1.25))

    def productivity(self, m):
        return torch.exp(self.log_k + self.alpha * (m - 4.5))

    def log_intensity(self, t, m):
        decay = (t[1:] + self.log_c.exp()) ** (-self.p)
        return torch.log(self.log_mu.exp() + self.productivity(m[0]) * decay)

    def expected(self, t, m):
        c = self.log_c.exp()
        omori = ((SPAN + c) ** (1 - self.p) - c ** (1 - self.p)) / (1 - self.p)
        return self.log_mu.exp() * SPAN + self.productivity(m[0]) * omori

    def negative_log_likelihood(self, t, m):
        return (self.expected(t, m) - self.log_intensity(t, m).sum()) / len(t)


process = OmoriUtsu()
optimizer = torch.optim.NAdam(process.parameters(), lr=0.03)
epoch_order = []
for sweep in range(36):
    if not epoch_order:
        epoch_order = list(rng.permutation(len(catalogue)))
    chosen = [catalogue[epoch_order.pop()] for _ in range(4)]
    nll = torch.stack([process.negative_log_likelihood(t, m) for t, m in chosen]).mean()
    optimizer.zero_grad()
    nll.backward()
    optimizer.step()
    with torch.no_grad():
        process.p.clamp_(1.0, 2.0)          # the decay exponents of the literature
        process.log_c.clamp_(-6.0, 0.0)
    print(f"sweep {sweep + 1:2d} nll {nll.item():+.4f} p {process.p.item():.4f} c {process.log_c.exp().item():.4f}")

print("parameters, sum of squares:", sum(q.detach().pow(2).item() for q in process.parameters()))
