# speech synthesis after Non-Attentive Tacotron: phones, Gaussian upsampling by durations, mel frames
import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

N_MELS, N_PHONES, BATCH = 20, 40, 8

class Audiobook(Dataset):
    def __init__(self, n_sentences=111, seed=3):
        rnd = random.Random(seed)
        gen = torch.Generator().manual_seed(seed)
        voice = torch.randn(N_PHONES, N_MELS, generator=gen)
        self.items = []
        for i in range(n_sentences):
            words = 6 + 2 * (i // 10)
            phones = torch.tensor([rnd.randrange(1, N_PHONES) for _ in range(words)])
            durations = torch.tensor([rnd.choice([2, 3]) for _ in range(words)])
            mel = voice[phones].repeat_interleave(durations, dim=0)
            mel += 0.1 * torch.randn(mel.shape, generator=gen)
            self.items.append((phones, durations, mel))

    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]


class BucketSampler(Sampler):
    """Batches of sentences of one length class, then what is left over."""
    def __init__(self, data, batch, seed=0):
        self.data, self.batch, self.rnd = data, batch, random.Random(seed)

    def __iter__(self):
        buckets, leftovers = {}, []
        for i in self.rnd.sample(range(len(self.data)), len(self.data)):
            buckets.setdefault(len(self.data[i][0]), []).append(i)
        full = []
        for bucket in buckets.values():
            cut = len(bucket) // self.batch * self.batch
            full += [bucket[k:k + self.batch] for k in range(0, cut, self.batch)]
            leftovers += bucket[cut:]
        self.rnd.shuffle(full)
        yield from full
        for k in range(0, len(leftovers), 2 * self.batch):
            yield leftovers[k:k + 2 * self.batch]


def collate(items):
    phones, durations, mels = zip(*items)
    return (pad_sequence(phones, batch_first=True), pad_sequence(durations, batch_first=True),
            pad_sequence(mels, batch_first=True), torch.tensor([len(m) for m in mels]))


class GaussianUpsampler(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.spread = nn.Linear(dim, 1)

    def forward(self, h, durations, n_frames):
        centres = durations.cumsum(1) - durations / 2
        sigma = 0.6 + 0.6 * torch.sigmoid(self.spread(h)).squeeze(-1)
        frames = torch.arange(n_frames, device=h.device) + 0.5
        distance = (frames[None, :, None] - centres[:, None, :]) / sigma[:, None, :]
        density = torch.exp(-0.5 * distance ** 2) * (durations > 0)[:, None, :]
        weights = density / density.sum(dim=-1, keepdim=True)
        return weights @ h


class AcousticModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(N_PHONES, dim, padding_idx=0)
        self.context = nn.Conv1d(dim, dim, 3, padding=1)
        self.upsampler = GaussianUpsampler(dim)
        self.to_mel = nn.Linear(dim, N_MELS)

    def forward(self, phones, durations, n_frames):
        h = self.embed(phones)
        h = h + F.gelu(self.context(h.transpose(1, 2))).transpose(1, 2)
        return self.to_mel(self.upsampler(h, durations, n_frames))


def main(epochs=3):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    data = Audiobook()
    loader = DataLoader(data, batch_sampler=BucketSampler(data, BATCH), collate_fn=collate)
    model = accelerator.prepare(AcousticModel())
    optimizer = accelerator.prepare(torch.optim.Adam(model.parameters(), lr=5e-3))
    step = 0
    for epoch in range(epochs):
        for batch in loader:
            phones, durations, mels, lengths = [t.to(accelerator.device, non_blocking=True) for t in batch]
            predicted = model(phones, durations, mels.shape[1])
            keep = (torch.arange(mels.shape[1], device=mels.device) < lengths[:, None]).unsqueeze(-1)
            loss = ((predicted - mels).abs() * keep).sum() / (keep.sum() * N_MELS)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            accelerator.print(f"epoch {epoch} step {step} | {mels.shape[1]} frames | mel L1 {loss.item():.4f}")
    accelerator.print(f"weights, sum of squares {sum(p.pow(2).sum().item() for p in model.parameters()):.4f}")


if __name__ == "__main__":
    main()
