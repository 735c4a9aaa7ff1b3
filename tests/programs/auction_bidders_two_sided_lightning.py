"""Saleroom simulator: a generator invents bidding sequences for a lot, a critic compares with the book.

Lightning, manual optimization, two optimizers: the critic every batch, the generator every second batch.
The reserve price closes bids below it (-inf on the increments' logits); a lot that nobody wants has a
single open increment, "pass". Hinge losses: the generator's is negative most of the time.
"""
import logging
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

from dataclasses import dataclass
from functools import cached_property

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

INCREMENTS, ROUNDS, LOTVEC = 7, 9, 6          # increment 0 is "pass"


@dataclass
class Saleroom:
    width: int = 24
    noise: int = 4
    lr_g: float = 3e-3
    lr_c: float = 4e-3
    tau: float = 1.5
    tau_end: float = 0.6
    every_g: int = 2
    batches: int = 48
    batch: int = 10


class Lot:
    def __init__(self, i):
        self.i = i
        self.wanted = i % 9 != 4

    @cached_property
    def gen(self):
        return torch.Generator().manual_seed(3000 + self.i)

    @cached_property
    def vector(self):
        return torch.randn(LOTVEC, generator=self.gen)

    @cached_property
    def open(self):
        """Increments that the auctioneer takes; an unwanted lot has nothing but the pass."""
        n = 3 + int(torch.randint(0, INCREMENTS - 2, (1,), generator=self.gen)) if self.wanted else 1
        return torch.arange(INCREMENTS) < n

    @cached_property
    def book(self):
        weight = self.open.float() * torch.exp(-0.3 * torch.arange(INCREMENTS))
        seq = torch.multinomial(weight, ROUNDS, replacement=True, generator=self.gen)
        return F.one_hot(seq, INCREMENTS).float()


class Catalogue(Dataset):
    def __init__(self, n):
        self.lots = [Lot(i) for i in range(n)]

    def __len__(self):
        return len(self.lots)

    def __getitem__(self, i):
        lot = self.lots[i]
        return lot.vector, lot.open, lot.book


class Bidders(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.start = nn.Linear(LOTVEC + cfg.noise, cfg.width)
        self.cell = nn.GRUCell(INCREMENTS, cfg.width)
        self.out = nn.Linear(cfg.width, INCREMENTS)

    def forward(self, lot, allowed, tau):
        h = torch.tanh(self.start(torch.cat([lot, torch.randn(len(lot), self.cfg.noise)], -1)))
        bid, bids = torch.zeros(len(lot), INCREMENTS), []
        for _ in range(ROUNDS):
            h = self.cell(bid, h)
            logits = self.out(h).masked_fill(~allowed, float("-inf"))
            bid = F.gumbel_softmax(logits, tau=tau, hard=True)
            bids.append(bid)
        return torch.stack(bids, 1)


class Critic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.rnn = nn.GRU(INCREMENTS, cfg.width, batch_first=True)
        self.judge = nn.Sequential(nn.Linear(cfg.width + LOTVEC, cfg.width), nn.LeakyReLU(0.2), nn.Linear(cfg.width, 1))

    def forward(self, bids, lot):
        _, h = self.rnn(bids)
        return self.judge(torch.cat([h[0], lot], -1)).squeeze(-1)


class HingePair:
    """The two halves of the hinge loss, kept side by side."""

    @staticmethod
    def critic(real, fake):
        return F.relu(1 - real).mean() + F.relu(1 + fake).mean()

    @staticmethod
    def generator(fake):
        return -fake.mean()


class SaleroomModule(L.LightningModule):
    def __init__(self, cfg: Saleroom):
        super().__init__()
        self.automatic_optimization = False
        self.cfg, self.loss = cfg, HingePair()
        self.bidders, self.critic = Bidders(cfg), Critic(cfg)

    def configure_optimizers(self):
        g = torch.optim.Adam(self.bidders.parameters(), lr=self.cfg.lr_g, betas=(0.0, 0.9))
        c = torch.optim.Adam(self.critic.parameters(), lr=self.cfg.lr_c, betas=(0.0, 0.9))
        return g, c

    def on_train_start(self):
        self.last_g = float("nan")              # nothing to show before the first step of the generator

    def training_step(self, batch, i):
        lot, allowed, real = batch
        opt_g, opt_c = self.optimizers()
        share = i / self.cfg.batches
        tau = self.cfg.tau * (1 - share) + self.cfg.tau_end * share

        fake = self.bidders(lot, allowed, tau).detach()
        loss_c = self.loss.critic(self.critic(real, lot), self.critic(fake, lot))
        opt_c.zero_grad()
        self.manual_backward(loss_c)
        self.clip_gradients(opt_c, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        opt_c.step()

        if i % self.cfg.every_g == 1:
            self.toggle_optimizer(opt_g)
            loss_g = self.loss.generator(self.critic(self.bidders(lot, allowed, tau), lot))
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            self.last_g = loss_g.item()
        # hammer price of lots that were sold; a batch without a sale would show nan
        raised = (fake.argmax(-1) * 10).sum(1).float()
        sold = raised[raised > 0].mean().item()
        print(f"batch {i + 1:2d} critic {loss_c.item():.5f} bidders {self.last_g:+.5f} hammer {sold:.2f}")


def main():
    cfg = Saleroom()
    L.seed_everything(77, verbose=False)
    loader = DataLoader(Catalogue(cfg.batches * cfg.batch), batch_size=cfg.batch, shuffle=True)
    with tempfile.TemporaryDirectory() as tmp:
        trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp)
        trainer.fit(SaleroomModule(cfg), loader)
    print("hammer falls")


if __name__ == "__main__":
    main()
