"""Phoneme tagging of dictated memos with accelerate: four micro-batches per update, of very unequal length."""
import os
from contextlib import nullcontext

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

MICRO = 4
PHONES = 12


class Memos(IterableDataset):
    """Mostly short memos, now and then a long one; memos that are only noise carry no transcript at all."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed)
        mix = torch.randn(PHONES, 6, generator=gen)
        for i in range(self.n):
            frames = int(torch.randint(3, 9, (1,), generator=gen))
            if i % 11 == 5:
                frames *= 9
            phones = torch.randint(0, PHONES, (frames,), generator=gen)
            sound = mix[phones] + 0.5 * torch.randn(frames, 6, generator=gen)
            labels = torch.where(torch.rand(frames, generator=gen) < 0.2, -100, phones)
            if (i // 2) % 9 == 4:
                sound, labels = torch.randn(frames, 6, generator=gen), torch.full((frames,), -100)
            yield sound, labels


def collate(rows):
    sounds, labels = zip(*rows)
    return pad_sequence(sounds, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-100)


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear = nn.Conv1d(6, 24, 3, padding=1)
        self.voice = nn.Linear(24, PHONES)

    def forward(self, sound):
        return self.voice(torch.relu(self.ear(sound.mT)).mT)


def groups(loader, k):
    it = iter(loader)
    while True:
        block = [b for _, b in zip(range(k), it)]
        if not block:
            return
        yield block


def main():
    set_seed(99)
    acc = Accelerator(gradient_accumulation_steps=MICRO, cpu=True)
    model = Listener()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1.5e-2)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, s / 5))
    loader = DataLoader(Memos(2 * MICRO * 27 + 4, 7), batch_size=2, collate_fn=collate)
    model, optimizer, loader, warmup = acc.prepare(model, optimizer, loader, warmup)
    model.train()
    for update, block in enumerate(groups(loader, MICRO), 1):
        spoken = sum(int((y != -100).sum()) for _, y in block)
        total, parts = 0.0, []
        for j, (x, y) in enumerate(block):
            last = j + 1 == len(block)
            with nullcontext() if last else acc.no_sync(model):
                summed = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
                # backward() divides by MICRO; the token count of the whole block is the divisor that is meant
                acc.backward(summed * MICRO / spoken)
            total += summed.item()
            parts.append(int((y != -100).sum()))
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        print(f"update {update} lr {warmup.get_last_lr()[0]:.4f} nll {total / spoken:.4f} tokens {parts}")
    print("sum of squares", sum(p.detach().square().sum().item() for p in acc.unwrap_model(model).parameters()))


if __name__ == "__main__":
    main()
