"""Codec for hydrophone clips from the harbour moorings.

An autoencoder is trained with a spectral loss and against a small critic. Lightning, two
optimizers, therefore manual optimization. Start with torchrun, two processes on the CPU box.
"""
import logging
import math
import tempfile
import warnings

warnings.filterwarnings("ignore")
for noisy in ("lightning.pytorch", "lightning.fabric", "lightning"):
    logging.getLogger(noisy).setLevel(logging.ERROR)

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SR = 2000
CLIP = 256
N_CLIPS = 176


def render_clip(rng):
    """A creak: two or three decaying partials over the sea's noise, 12 bit ADC."""
    t = torch.arange(CLIP) / SR
    clip = 0.02 * torch.randn(CLIP, generator=rng)
    for _ in range(int(torch.randint(2, 4, (1,), generator=rng))):
        f = 60 + 500 * torch.rand(1, generator=rng)
        decay = 5 + 30 * torch.rand(1, generator=rng)
        clip += torch.exp(-decay * t) * torch.sin(2 * math.pi * f * t)
    return (clip * 2047).round().clamp(-2048, 2047) / 2047


class MooringClips(Dataset):
    def __init__(self, seed=11):
        rng = torch.Generator().manual_seed(seed)
        self.clips = torch.stack([render_clip(rng) for _ in range(N_CLIPS)])
        # mooring C lost its supply in the night of the 14th, the recorder went on writing
        self.clips[67] = 0.0

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        return self.clips[i]


class ClipCodec(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(CLIP, 64), nn.GELU(), nn.Linear(64, width))
        self.decoder = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, CLIP))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class SpectralConvergence(nn.Module):
    """|| |S| - |R| || / || |S| ||, as in the vocoder papers, for each clip by itself."""

    def __init__(self, n_fft=64):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft))

    def magnitudes(self, x):
        frames = x.unfold(-1, self.n_fft, self.n_fft // 2) * self.window
        return torch.fft.rfft(frames).abs()

    def forward(self, recon, clip):
        target, guess = self.magnitudes(clip), self.magnitudes(recon)
        gap = (target - guess).flatten(1).norm(dim=1)
        energy = target.flatten(1).norm(dim=1)
        relative = gap / energy
        return relative.mean()


class AdversarialCodec(L.LightningModule):
    def __init__(self, lr=2e-3, adv_weight=0.05):
        super().__init__()
        self.automatic_optimization = False
        self.codec = ClipCodec()
        self.critic = nn.Sequential(nn.Linear(CLIP, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.spectral = SpectralConvergence()
        self.lr, self.adv_weight = lr, adv_weight

    def configure_optimizers(self):
        codec = torch.optim.AdamW(self.codec.parameters(), lr=self.lr)
        critic = torch.optim.AdamW(self.critic.parameters(), lr=self.lr / 2, betas=(0.5, 0.9))
        return codec, critic

    def train_dataloader(self):
        # in the order of recording, dealt out to the ranks in turn
        clips = MooringClips()
        turns = DistributedSampler(clips, self.trainer.world_size, self.global_rank, shuffle=False)
        return DataLoader(clips, batch_size=4, sampler=turns)

    def training_step(self, clip, batch_idx):
        opt_codec, opt_critic = self.optimizers()

        self.toggle_optimizer(opt_codec)
        recon = self.codec(clip)
        fool = nn.functional.softplus(-self.critic(recon)).mean()
        spectral = self.spectral(recon, clip)
        codec_loss = spectral + (recon - clip).abs().mean() + self.adv_weight * fool
        opt_codec.zero_grad()
        self.manual_backward(codec_loss)
        opt_codec.step()
        self.untoggle_optimizer(opt_codec)

        self.toggle_optimizer(opt_critic)
        real, fake = self.critic(clip), self.critic(recon.detach())
        critic_loss = nn.functional.softplus(-real).mean() + nn.functional.softplus(fake).mean()
        opt_critic.zero_grad()
        self.manual_backward(critic_loss)
        opt_critic.step()
        self.untoggle_optimizer(opt_critic)

        both = self.all_gather(torch.stack([codec_loss.detach(), critic_loss.detach()])).mean(0)
        if self.global_rank == 0:
            print(f"batch {batch_idx + 1:2d}  codec {both[0]:.6f}  critic {both[1]:.6f}", flush=True)


def main():
    L.seed_everything(3, verbose=False)
    module = AdversarialCodec()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = L.Trainer(
            accelerator="cpu", devices=2, strategy="ddp_find_unused_parameters_true", max_epochs=1,
            use_distributed_sampler=False,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=scratch)
        trainer.fit(module)
    if module.global_rank == 0:
        total = sum(p.detach().double().sum() for p in module.parameters())
        print(f"weights {total:.6f}", flush=True)


if __name__ == "__main__":
    main()
