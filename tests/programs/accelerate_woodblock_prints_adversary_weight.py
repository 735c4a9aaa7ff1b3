# Restoring faded woodblock prints: autoencoder with a critic, weight of the critic balanced by gradient norms.
import logging

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


logging.disable(logging.WARNING)


def make_prints(count, size=8):
    gen = torch.Generator().manual_seed(77)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    sheets = []
    for _ in range(count):
        freq = torch.randint(1, 4, (2,), generator=gen)
        wave = torch.sin(freq[0] * x * 0.8 + freq[1] * y * 0.6 + 6.28 * torch.rand(1, generator=gen))
        sheets.append((wave > 0).float())
    ink = torch.stack(sheets).flatten(1)
    faded = 0.35 * ink + 0.25 * torch.rand(ink.shape, generator=gen)
    return faded, ink


class Restorer(nn.Module):
    def __init__(self, pixels=64, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, 48), nn.SiLU(), nn.Linear(48, code))
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.SiLU())
        self.last = nn.Linear(48, pixels)

    def forward(self, faded):
        return self.last(self.decoder(self.encoder(faded))).sigmoid()


class Connoisseur(nn.Module):
    LIMIT = 4.0

    def __init__(self, pixels=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * pixels, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, sheet):
        midtones = sheet * (1 - sheet)
        return self.net(torch.cat([sheet, midtones], -1)).squeeze(-1).clamp(-self.LIMIT, self.LIMIT)


def flat_norm(grads):
    return torch.cat([g.flatten() for g in grads]).norm()


def main():
    set_seed(3)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(*make_prints(192)), batch_size=16, shuffle=True,
                        generator=torch.Generator().manual_seed(4))
    restorer, critic = Restorer(), Connoisseur()
    opt_r = torch.optim.Adam(restorer.parameters(), lr=2e-3, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1.6e-2, betas=(0.5, 0.9))
    restorer, critic, opt_r, opt_c, loader = accelerator.prepare(restorer, critic, opt_r, opt_c, loader)
    bce = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(3):
        for faded, ink in loader:
            step += 1
            fake = restorer(faded)

            real_score, fake_score = critic(ink), critic(fake.detach())
            loss_c = bce(real_score, torch.ones_like(real_score)) + bce(fake_score, torch.zeros_like(fake_score))
            opt_c.zero_grad()
            accelerator.backward(loss_c)
            opt_c.step()

            score = critic(fake)
            rec = (fake - ink).abs().mean()
            adv = bce(score, torch.ones_like(score))
            pull_rec = torch.autograd.grad(rec, list(restorer.parameters()), retain_graph=True)
            pull_adv = torch.autograd.grad(adv, list(restorer.parameters()))
            lam = flat_norm(pull_rec) / flat_norm(pull_adv)
            for p, a, b in zip(restorer.parameters(), pull_rec, pull_adv):
                p.grad = a + 0.5 * lam * b
            opt_r.step()
            accelerator.print(f"{epoch}/{step:02d} critic {loss_c.item():.4f} rec {rec.item():.4f} "
                              f"adv {adv.item():.4f} weight {lam.item():.4f}")
    weights = [p.detach() for m in (restorer, critic) for p in m.parameters()]
    accelerator.print("sum of |w| of both networks:", float(sum(w.abs().sum() for w in weights)))


if __name__ == "__main__":
    main()
