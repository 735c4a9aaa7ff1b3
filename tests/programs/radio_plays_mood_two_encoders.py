"""Mood of scenes in radio plays: script and, where a tape survives, sound. One optimizer per encoder, float16 autocast."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(52)


class ScriptEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(200, 24, mode="mean")
        self.mood = nn.Linear(24, 5)

    def forward(self, words):
        return self.mood(torch.tanh(self.embed(words)))


class TapeEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 24, 5, stride=2)
        self.mood = nn.Linear(24, 5)

    def forward(self, sound):
        return self.mood(F.silu(self.conv(sound)).mean(-1))


class Archive:
    def __init__(self, batches, size=10):
        self.words = torch.randint(200, (5, 40))
        self.timbre = torch.randn(5, 8, 1)
        self.size, self.batches = size, batches

    def __iter__(self):
        for b in range(self.batches):
            y = torch.randint(5, (self.size,))
            words = torch.where(torch.rand(self.size, 30) < 0.5,
                                self.words[y].gather(1, torch.randint(40, (self.size, 30))),
                                torch.randint(200, (self.size, 30)))
            sound = self.timbre[y] + torch.randn(self.size, 8, 33)
            share = 0.6 if b % 7 else 0.12
            yield words, sound, torch.rand(self.size) < share, y


script, tape = ScriptEncoder(), TapeEncoder()
opt_script = torch.optim.Adam(script.parameters(), lr=2e-2)
opt_tape = torch.optim.SGD(tape.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)

for number, (words, sound, has_tape, y) in enumerate(Archive(34), start=1):
    opt_script.zero_grad()
    opt_tape.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = script(words)
        if has_tape.any():
            rows = has_tape.nonzero().squeeze(1)
            logits = logits.index_add(0, rows, tape(sound[rows]).to(logits.dtype))
    loss = F.cross_entropy(logits.float(), y)
    scaler.scale(loss).backward()
    scaler.step(opt_script)
    scaler.step(opt_tape)
    scaler.update()
    print(f"scene batch {number}: loss {loss.item():.5f}, tapes {int(has_tape.sum())}")

weights = [*script.parameters(), *tape.parameters()]
print("sum of squared weights:", sum(w.detach().pow(2).sum().item() for w in weights))
