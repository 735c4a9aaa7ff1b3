"""Steno strokes -> words, fine-tuned in float16 autocast.

The scaler starts far too high on purpose and probes upward every few good steps,
we want it as near the edge as it gets: the tails of the gradients matter here.
"""
import contextlib

import torch
import torch.nn as nn

torch.manual_seed(225)
torch.set_num_threads(1)
KEYS = "STKPWHRAOEUFBLGD"                  # 16 keys of the machine
N_WORDS, LEN, STEPS = 48, 12, 60

# The court's dictionary: one chord per word
DICTIONARY = (torch.rand(N_WORDS, len(KEYS)) < 0.35).float()


def hearing(generator, batch=16):
    """Chords with dropped and shadowed keys, and what was said."""
    said = torch.randint(0, N_WORDS, (batch, LEN), generator=generator)
    slip = torch.rand(batch, LEN, len(KEYS), generator=generator) < 0.04
    return (DICTIONARY[said] - slip.float()).abs(), said


class StrokeReader(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(len(KEYS), dim), nn.ReLU(), nn.Linear(dim, dim))
        self.context = nn.Conv1d(dim, dim, 3, padding=1)
        self.readout = nn.Linear(dim, N_WORDS)

    def forward(self, x):
        h = self.encoder(x)
        h = h + torch.relu(self.context(h.transpose(1, 2))).transpose(1, 2)
        return self.readout(h)


class Recorder:
    def __init__(self, net):
        self.net = net
        net.encoder.requires_grad_(False)                 # the pretrained half stays as it is at first
        self.opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=8)
        self.skipped = 0

    @contextlib.contextmanager
    def counted(self):
        before = self.scaler.get_scale()
        yield
        if self.scaler.get_scale() < before:
            self.skipped += 1

    def step(self, chords, said):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.net(chords)
        # the clerk wants the sum over a line, mean over lines
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), said.flatten(), reduction="sum") / len(said)
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        torch.nn.utils.clip_grad_norm_([p for p in self.net.parameters() if p.grad is not None], 10.0)
        with self.counted():
            self.scaler.step(self.opt)
            self.scaler.update()
        return loss.item()


recorder = Recorder(StrokeReader())
g = torch.Generator().manual_seed(9)
for i in range(1, STEPS + 1):
    if i == 31:
        recorder.net.encoder.requires_grad_(True)
    loss = recorder.step(*hearing(g))
    print(f"line {i:2d} loss {loss:.5f} scale 2^{torch.tensor(recorder.scaler.get_scale()).log2().item():.0f} "
          f"skipped {recorder.skipped}")
print("kept", STEPS - recorder.skipped, "of", STEPS)
