"""Gait speed from waist accelerometers. Shards on disk, read as a stream by two worker processes."""
import os
import tempfile
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

warnings.simplefilter('ignore')
N_SHARDS, PER_SHARD, LENGTH, BATCH, EPOCHS = 4, 64, 80, 16, 3


def write_shards(folder):
    rng = np.random.default_rng(9)
    for s in range(N_SHARDS):
        speed = rng.uniform(0.6, 2.0, PER_SHARD)
        t = np.arange(LENGTH) / 25
        walk = np.sin(2 * np.pi * speed[:, None] * t + rng.uniform(0, 6, (PER_SHARD, 1)))
        walk = walk * (1 + speed[:, None]) + rng.normal(0, .3, (PER_SHARD, LENGTH))
        raw = np.round(walk * 256 + 1024).astype(np.int16)
        if s == 2:
            raw[41] = 1023                      # this one was left on a desk
        np.savez(os.path.join(folder, f'shard{s}.npz'), raw=raw, speed=speed.astype(np.float32))


class Stream(IterableDataset):
    def __init__(self, folder):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder))

    def __iter__(self):
        info = get_worker_info()
        files = self.files if info is None else self.files[info.id::info.num_workers]
        for f in files:
            with np.load(f) as z:
                for raw, speed in zip(z['raw'], z['speed']):
                    yield raw, speed


def collate(records):
    raw = np.stack([r for r, _ in records]).astype(np.float32)
    z = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    return torch.from_numpy(z), torch.from_numpy(np.array([s for _, s in records]))


class Gait(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 12, 7, padding=3)
        self.gru = nn.GRU(12, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        h = torch.relu(self.conv(x[:, None])).transpose(1, 2)
        _, last = self.gru(h[:, ::4])
        return self.out(last[0]).squeeze(1)


def main():
    torch.manual_seed(12)
    net = Gait()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    huber = nn.SmoothL1Loss(beta=0.2)
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder)
        loader = DataLoader(Stream(folder), batch_size=BATCH, num_workers=2, collate_fn=collate)
        step = 0
        for epoch in range(EPOCHS):
            for x, speed in loader:
                step += 1
                opt.zero_grad()
                loss = huber(net(x), speed)
                loss.backward()
                opt.step()
                print(f'epoch {epoch} step {step} huber {loss.item():.6f}', flush=True)
    print('final', sum(p.abs().sum().item() for p in net.parameters()))


if __name__ == '__main__':
    main()
