import logging
import warnings

import torch
import torch.nn.functional as F
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
ITEMS = 12


class AbilityNet(torch.nn.Module):
    """From the share of agreement to a person's trust in institutions."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(1, 8)
        self.outer = torch.nn.Linear(8, 1)

    def forward(self, answers):
        raw = torch.logit(answers.mean(dim=1, keepdim=True))
        return self.outer(torch.tanh(self.inner(raw))).squeeze(-1)


class TwoParameterModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.ability = AbilityNet()
        self.difficulty = torch.nn.Parameter(torch.zeros(ITEMS))
        self.log_slope = torch.nn.Parameter(torch.zeros(ITEMS))

    def forward(self, answers):
        theta = self.ability(answers)
        return self.log_slope.exp() * (theta[:, None] - self.difficulty)

    def training_step(self, batch, index):
        (answers,) = batch
        nll = F.binary_cross_entropy_with_logits(self(answers), answers)
        prior = 0.01 * self.log_slope.square().sum() + 0.01 * self.difficulty.square().sum()
        loss = nll + prior
        print(f"batch {index + 1} nll {nll.item():.5f} loss {loss.item():.5f}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.RMSprop(self.parameters(), lr=0.01)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)}


def interviews(n, gen):
    trust = 0.9 * torch.randn(n, 1, generator=gen)
    hard = torch.linspace(-1.5, 1.5, ITEMS)
    return torch.bernoulli(torch.sigmoid(1.3 * (trust - hard)), generator=gen)


def load_waves():
    gen = torch.Generator().manual_seed(8)
    spring = interviews(400, gen)
    score = spring.sum(1)
    spring = spring[(score > 0) & (score < ITEMS)][:184]
    autumn = interviews(72, gen)
    return torch.cat([spring, autumn])


def main():
    pl.seed_everything(3, verbose=False)
    data = load_waves()
    print("respondents", len(data))
    model = TwoParameterModel()
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(TensorDataset(data), batch_size=8))
    print("sum of squared parameters", f"{sum(p.detach().square().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
