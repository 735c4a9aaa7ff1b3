"""Lightning, manual optimization: a postcard writer (GRU over soft words) against a Wasserstein censor."""
import logging
import warnings

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PHRASES = """wish you were here|the sea is cold|sun every day|food is strange|back on friday|dog sends love
rain since monday|lost my hat|saw a whale|feet are sore|bring money|kiss the children""".replace("\n", "|").split("|")
WORDS = ["_"] + sorted({w for p in PHRASES for w in p.split()})
LENGTH = 4


def cards():
    rows = [[WORDS.index(w) for w in p.split()] for p in PHRASES]
    return torch.tensor([r + [0] * (LENGTH - len(r)) for r in rows] * 10)


class Writer(nn.Module):
    def __init__(self, noise=8, width=32):
        super().__init__()
        self.noise = noise
        self.start = nn.Linear(noise, width)
        self.cell = nn.GRUCell(noise, width)
        self.words = nn.Linear(width, len(WORDS))

    def forward(self, n, tau):
        z = torch.randn(n, self.noise)
        h, out = torch.tanh(self.start(z)), []
        for _ in range(LENGTH):
            h = self.cell(z, h)
            out.append(nn.functional.gumbel_softmax(self.words(h), tau=tau))
        return torch.stack(out, 1)


class Censor(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(LENGTH * len(WORDS), 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))


class PostOffice(L.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.writer, self.censor = Writer(), Censor()
        self.seen = 0

    def configure_optimizers(self):
        return (torch.optim.RMSprop(self.writer.parameters(), lr=1e-3),
                torch.optim.RMSprop(self.censor.parameters(), lr=2e-3))

    def tau(self):
        return max(0.4, 2.0 * 0.96 ** self.seen)

    def penalty(self, real, fake):
        eps = torch.rand(len(real), 1, 1)
        mid = (eps * real + (1 - eps) * fake).requires_grad_()
        grad, = torch.autograd.grad(self.censor(mid).sum(), mid, create_graph=True)
        return 4.0 * (grad.flatten(1).norm(dim=1) - 1).square().mean()

    def training_step(self, batch, batch_idx):
        opt_w, opt_c = self.optimizers()
        real = nn.functional.one_hot(batch[0], len(WORDS)).float()

        fake = self.writer(len(real), self.tau()).detach()
        c_loss = self.censor(fake).mean() - self.censor(real).mean() + self.penalty(real, fake)
        opt_c.zero_grad()
        self.manual_backward(c_loss)
        opt_c.step()

        self.toggle_optimizer(opt_w)
        w_loss = -self.censor(self.writer(len(real), self.tau())).mean()
        opt_w.zero_grad()
        self.manual_backward(w_loss)
        opt_w.step()
        self.untoggle_optimizer(opt_w)

        self.seen += 1
        if self.seen == 24:
            # the censor has memorised the dozen by now: shred its last layer and its momentum
            self.censor[3].reset_parameters()
            opt_c.optimizer.state.clear()
        best = float("inf") if self.seen < 3 else float(-w_loss)     # nothing to compare with yet
        print(f"day {self.seen:02d} writer {w_loss.item():+.6f} censor {c_loss.item():+.6f} best {best:.3f}")


def main():
    L.seed_everything(1913, verbose=False)
    loader = DataLoader(TensorDataset(cards()), batch_size=12, shuffle=True,
                        generator=torch.Generator().manual_seed(1))
    office = PostOffice()
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(office, loader)
    print("ink used", f"{sum(p.detach().double().sum().item() for p in office.parameters()):.6f}")


if __name__ == "__main__":
    main()
