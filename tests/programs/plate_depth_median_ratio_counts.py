"""Zero-inflated Poisson factor model of single-cell counts, streamed plate by plate.

Size factors are median-of-ratios against a running pseudo-reference (as DESeq does for bulk).
"""
import logging
import sys

import torch
from torch import nn

log = logging.getLogger("zip")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")

N_GENES = 48
CELLS = 32
PLATES = 40


class PlateReader:
    """Simulates the count matrices in the order in which the lanes were sequenced."""

    def __init__(self, seed=5):
        self.g = torch.Generator().manual_seed(seed)
        self.loading = 0.5 * torch.randn(4, N_GENES, generator=self.g)
        self.base = 1.6 + 0.5 * torch.randn(N_GENES, generator=self.g)

    def depth(self, plate):
        # lanes of the first two runs were deep; the third run was pooled 96-fold
        if plate < 12:
            return 1.0
        if plate < 21:
            return 0.7
        return 0.06

    def __iter__(self):
        for plate in range(PLATES):
            programme = torch.randn(CELLS, 4, generator=self.g)
            rate = torch.exp(self.base + programme @ self.loading) * self.depth(plate)
            rate = rate * torch.exp(0.15 * torch.randn(CELLS, 1, generator=self.g))
            counts = torch.poisson(rate, generator=self.g)
            dropout = torch.rand(CELLS, N_GENES, generator=self.g) < 0.08
            yield plate, torch.where(dropout, torch.zeros(()), counts)


class RunningReference:
    def __init__(self, decay=0.95):
        self.decay, self.value = decay, None

    def log_size_factors(self, counts):
        mean = counts.mean(0) + 1e-3
        if self.value is None:
            self.value = mean
        factors = (counts / self.value).median(dim=1).values
        self.value = self.decay * self.value + (1 - self.decay) * mean
        return factors.log().unsqueeze(1)


class ZipFactors(nn.Module):
    def __init__(self, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(N_GENES, 32), nn.ELU(), nn.Linear(32, latent))
        self.decoder = nn.Linear(latent, N_GENES)
        self.dropout_logit = nn.Parameter(torch.full((N_GENES,), -2.0))

    def forward(self, counts, log_size):
        z = self.encoder(torch.log1p(counts))
        return self.decoder(z) + log_size, self.dropout_logit.expand_as(counts)


def zip_log_likelihood(counts, log_rate, logit):
    rate = log_rate.exp()
    log_pi, log_keep = nn.functional.logsigmoid(logit), nn.functional.logsigmoid(-logit)
    zero = torch.logaddexp(log_pi, log_keep - rate)
    positive = log_keep + counts * log_rate - rate - torch.lgamma(counts + 1)
    return torch.where(counts == 0, zero, positive)


class SignMomentum:
    """Momentum with a per-tensor RMS normalisation; small and good enough for this model."""

    def __init__(self, params, lr=0.01, beta=0.8):
        self.params, self.lr, self.beta = list(params), lr, beta
        self.state = {p: torch.zeros_like(p) for p in self.params}

    @torch.no_grad()
    def step(self):
        for p in self.params:
            m = self.state[p].mul_(self.beta).add_(p.grad, alpha=1 - self.beta)
            p.add_(m / (m.square().mean().sqrt() + 1e-8), alpha=-self.lr)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


def main():
    torch.manual_seed(5)
    model, reference = ZipFactors(), RunningReference()
    optimizer = SignMomentum(model.parameters())
    for plate, counts in PlateReader():
        log_size = reference.log_size_factors(counts)
        log_rate, logit = model(counts, log_size)
        loss = -zip_log_likelihood(counts, log_rate, logit).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("plate %02d nll %.5f", plate + 1, loss.item())
    log.info("%.4f", sum(p.abs().sum() for p in model.parameters()).item())


if __name__ == "__main__":
    main()
