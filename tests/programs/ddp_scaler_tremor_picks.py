"""P-wave picker (1-d U-Net, tiny) with float16 autocast and torch.amp.GradScaler, on CPU under DDP.

The losses are summed over the trace, so the default scale is too high: it comes down within the first steps.
"""
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Picker(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.inc = nn.Conv1d(3, ch, 7, padding=3)
        self.down = nn.Conv1d(ch, 2 * ch, 5, stride=2, padding=2)
        self.up = nn.ConvTranspose1d(2 * ch, ch, 4, stride=2, padding=1)
        self.out = nn.Conv1d(2 * ch, 1, 1)

    def forward(self, wave):
        a = F.relu(self.inc(wave))
        b = F.relu(self.down(a))
        c = F.relu(self.up(b))
        return self.out(torch.cat([a, c], 1)).squeeze(1)


class SeismicSource:
    def __init__(self, rank, batch=8, length=96):
        self.g = torch.Generator().manual_seed(9000 + rank)
        self.batch, self.length = batch, length

    def __iter__(self):
        return self

    def __next__(self):
        t = torch.arange(self.length).float()
        onset = torch.randint(20, 70, (self.batch, 1), generator=self.g).float()
        env = (t >= onset).float() * torch.exp(-(t - onset).clamp(min=0) / 15)
        wave = torch.stack([env * torch.sin(t * w) for w in (0.9, 1.3, 0.4)], 1)
        wave = wave + 0.1 * torch.randn(wave.shape, generator=self.g)
        target = torch.exp(-0.5 * ((t - onset) / 3) ** 2)
        return wave, target


@contextlib.contextmanager
def process_group():
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


class Trainer:
    accumulate = 2

    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(64)
        self.net = DDP(Picker())
        self.opt = torch.optim.Adam(self.net.parameters(), lr=8e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16, growth_interval=12)
        self.skipped = 0

    def micro(self, wave, target):
        with torch.autocast("cpu", dtype=torch.float16):
            logit = self.net(wave)
            # summed over the trace, mean over the batch: numbers are large
            loss = F.binary_cross_entropy_with_logits(logit.float(), target, reduction="none").sum(-1).mean()
        self.scaler.scale(loss / self.accumulate).backward()
        return loss.detach()

    def window(self, source):
        total = torch.zeros(())
        for k in range(self.accumulate):
            sync = self.net.no_sync() if k < self.accumulate - 1 else contextlib.nullcontext()
            with sync:
                total += self.micro(*next(source)) / self.accumulate
        self.scaler.unscale_(self.opt)
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        before = self.scaler.get_scale()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.skipped += self.scaler.get_scale() < before
        self.opt.zero_grad(set_to_none=True)
        return total, norm

    def fit(self, source, windows):
        for i in range(1, windows + 1):
            loss, norm = self.window(source)
            dist.all_reduce(loss)
            if self.rank == 0:
                print(f"window {i:02d} loss {loss.item() / 2:.4f} norm {norm.item():.3f} "
                      f"scale 2^{torch.tensor(self.scaler.get_scale()).log2().item():.0f} skipped {self.skipped}", flush=True)


with process_group() as rank:
    trainer = Trainer(rank)
    trainer.fit(iter(SeismicSource(rank)), windows=30)
    if rank == 0:
        print(f"done, {sum(p.detach().double().sum() for p in trainer.net.parameters()).item():.6f}", flush=True)
