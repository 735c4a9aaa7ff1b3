"""Hailstone diameters from radar columns: gamma regression, mean by a net and shape by a second optimizer."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def make_storms(n=1200, seed=11):
    g = torch.Generator().manual_seed(seed)
    echo = torch.randn(n, 9, generator=g)
    severity = 0.5 * echo[:, 0] - 0.3 * echo[:, 3] + 0.2 * echo[:, 5] * echo[:, 1]
    mean = torch.exp(1.2 + severity)
    # a broad distribution of diameters: shape near one half
    noise = torch.randn(n, generator=g) ** 2
    return echo, (mean * noise).clamp(min=1e-3)


class MeanNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 1)

    def forward(self, echo):
        return torch.exp(self.head(self.body(echo)).squeeze(-1).clamp(-6, 6))


class GammaLikelihood(nn.Module):
    """Negative log-density of gamma with mean mu and a common shape."""

    def __init__(self, start=3.0):
        super().__init__()
        self.shape = nn.Parameter(torch.tensor(start))

    def forward(self, y, mu, shape):
        logp = shape * torch.log(shape) - shape * mu.log() + (shape - 1) * y.log() - shape * y / mu - torch.lgamma(shape)
        return -logp.mean()


class HailModule(L.LightningModule):
    def __init__(self, lr=3e-3, shape_lr=0.02):
        super().__init__()
        self.automatic_optimization = False
        self.lr, self.shape_lr = lr, shape_lr
        self.mean_net = MeanNet()
        self.likelihood = GammaLikelihood()

    def training_step(self, batch, batch_idx):
        echo, y = batch
        opt_mean, opt_shape = self.optimizers()

        # first the mean, for the present shape
        loss = self.likelihood(y, self.mean_net(echo), self.likelihood.shape.detach())
        opt_mean.zero_grad()
        self.manual_backward(loss)
        opt_mean.step()

        # then the shape, for the new mean
        with torch.no_grad():
            mu = self.mean_net(echo)
        loss_shape = self.likelihood(y, mu, self.likelihood.shape)
        opt_shape.zero_grad()
        self.manual_backward(loss_shape)
        opt_shape.step()
        print(f"{batch_idx + 1:03d} nll={loss.item():.5f} nll_after={loss_shape.item():.5f}", flush=True)

    def configure_optimizers(self):
        return (torch.optim.Adam(self.mean_net.parameters(), lr=self.lr),
                torch.optim.SGD([self.likelihood.shape], lr=self.shape_lr, momentum=0.9))


def main():
    L.seed_everything(5, verbose=False)
    loader = DataLoader(TensorDataset(*make_storms()), batch_size=24, shuffle=True,
                        generator=torch.Generator().manual_seed(3))
    module = HailModule()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, loader)
    print(sum(p.detach().abs().sum().item() for p in module.parameters()))


if __name__ == "__main__":
    main()
