"""Variational autoencoder for warbler song contours (Lightning)."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

SPECIES = 5
FRAMES = 40
LATENT = 4


def song_contours(n):
    g = torch.Generator().manual_seed(77)
    species = torch.randint(0, SPECIES, (n,), generator=g)
    time = torch.linspace(0, 1, FRAMES)
    rate = 2.0 + species.float()[:, None] + 0.2 * torch.randn(n, 1, generator=g)
    sweep = (species.float()[:, None] - 2) * time
    return torch.sin(2 * torch.pi * rate * time) + sweep + 0.05 * torch.randn(n, FRAMES, generator=g)


class SongVAE(L.LightningModule):
    def __init__(self, standard_prior_steps=17):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FRAMES, 32), nn.Tanh(), nn.Linear(32, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.Tanh(), nn.Linear(32, FRAMES))
        self.species_mean = nn.Parameter(torch.randn(SPECIES, LATENT))
        self.species_logit = nn.Parameter(torch.zeros(SPECIES))
        self.standard_prior_steps = standard_prior_steps

    def prior(self):
        if self.global_step < self.standard_prior_steps:
            return Independent(Normal(torch.zeros(LATENT), torch.ones(LATENT)), 1)
        # one lobe per species once the codes have spread out
        lobes = Independent(Normal(self.species_mean, torch.full((SPECIES, LATENT), 0.7)), 1)
        return MixtureSameFamily(Categorical(logits=self.species_logit), lobes)

    def training_step(self, batch, batch_idx):
        (song,) = batch
        mean, log_sd = self.encoder(song).chunk(2, dim=-1)
        posterior = Independent(Normal(mean, log_sd.clamp(-6, 3).exp()), 1)
        z = posterior.rsample()
        reconstruction = Normal(self.decoder(z), 0.5).log_prob(song).sum(-1)
        divergence = kl_divergence(posterior, self.prior())
        loss = (divergence - reconstruction).mean()
        print(f"step {self.global_step + 1} -elbo {loss.item():.4f} kl {divergence.mean().item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main():
    L.seed_everything(8, verbose=False)
    data = torch.utils.data.TensorDataset(song_contours(360))
    loader = torch.utils.data.DataLoader(data, batch_size=24, shuffle=True)
    model = SongVAE()
    trainer = L.Trainer(max_steps=40, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print("weights squared", sum(p.detach().pow(2).sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
