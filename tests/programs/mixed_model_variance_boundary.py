"""Wheat trial at eleven sites: yield on nitrogen and rainfall with a random intercept per site, fitted by penalised
likelihood (non-centred: site effect = sqrt(tau2) * z, z ~ N(0, 1); exponential prior on tau2). Variances cannot be
negative, so they are projected after each update as in projected-gradient REML."""
import math

import torch


def trial(gen, sites=11, plots=14):
    site = torch.arange(sites).repeat_interleave(plots)
    nitrogen = torch.rand(sites * plots, generator=gen) * 2 - 1
    rain = torch.randn(sites * plots, generator=gen)
    yield_t = 6.2 + 1.1 * nitrogen - 0.4 * nitrogen ** 2 + 0.5 * rain
    yield_t = yield_t + 0.45 * torch.randn(sites * plots, generator=gen)      # hardly any difference between sites
    design = torch.stack([torch.ones_like(rain), nitrogen, nitrogen ** 2, rain], 1)
    return design, site, yield_t


class MixedModel:
    def __init__(self, design, site, response, gen):
        self.design, self.site, self.response = design, site, response
        n_sites = int(site.max()) + 1
        self.params = {
            "beta": torch.zeros(design.shape[1]),
            "z": 0.3 * torch.randn(n_sites, generator=gen),
            "tau2": torch.tensor(0.30),
            "sigma2": torch.tensor(1.0),
        }
        with torch.no_grad():
            self.params["beta"][0] = response.mean()
        for p in self.params.values():
            p.requires_grad_(True)

    def site_effects(self):
        return torch.sqrt(self.params["tau2"]) * self.params["z"]

    def objective(self):
        fitted = self.design @ self.params["beta"] + self.site_effects()[self.site]
        sigma2 = self.params["sigma2"]
        data = 0.5 * ((self.response - fitted) ** 2 / sigma2 + sigma2.log() + math.log(2 * math.pi)).sum()
        prior = 0.5 * (self.params["z"] ** 2).sum() + 20.0 * self.params["tau2"]
        return (data + prior) / len(self.response)

    @torch.no_grad()
    def project(self):
        self.params["tau2"].clamp_(min=0.0)
        self.params["sigma2"].clamp_(min=1e-3)


def fit(model, iterations=45, lr=0.02):
    opt = torch.optim.Adam(model.params.values(), lr=lr)
    for it in range(1, iterations + 1):
        opt.zero_grad()
        nll = model.objective()
        nll.backward()
        opt.step()
        model.project()
        print(f"{it:3d} penalised nll {nll.item():.5f} tau2 {model.params['tau2'].item():.5f}")


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(1900)
    m = MixedModel(*trial(generator), generator)
    fit(m)
    print("fixed effects", " ".join(f"{b:.3f}" for b in m.params["beta"].tolist()))
    print("finite", int(all(bool(p.isfinite().all()) for p in m.params.values())))
