"""Kitchen voice assistant: letters of short commands with a small conv + GRU recogniser and CTC."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

ALPHABET = "_abcdefghijklmnopqrstuvwxyz "
COMMANDS = ["timer on", "oven off", "add milk", "light", "boil egg", "off", "next step", "call mum"]
MELS = 12


def encode(text):
    return torch.tensor([ALPHABET.index(c) for c in text])


def record(text, gen):
    """Fake spectrogram power: a few frames for every letter, silence (power 0) in between."""
    frames = []
    hurried = torch.rand(1, generator=gen).item() < 0.2
    for c in text:
        power = torch.zeros(MELS)
        if c != " ":
            band = ALPHABET.index(c) % MELS
            power[band] = 1.0
            power[(band * 5 + 3) % MELS] += 0.5
        length = 1 if hurried else int(torch.randint(3, 6, (1,), generator=gen))
        frames += [power * (0.5 + torch.rand(1, generator=gen))] * length
    return torch.stack(frames)


def log_mel(power):
    return torch.log(power).clamp(min=-8.0) / 8.0


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(MELS, 32, 3, stride=2, padding=1)
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, len(ALPHABET))

    def forward(self, mel, lengths):
        h = torch.relu(self.front(mel.transpose(1, 2))).transpose(1, 2)
        h, _ = self.gru(h)
        return self.out(h).log_softmax(-1), (lengths + 1) // 2


def batches(gen, count, size):
    for number in range(1, count + 1):
        texts = [COMMANDS[i] for i in torch.randint(0, len(COMMANDS), (size,), generator=gen).tolist()]
        if number in (9, 24):
            texts = ["off"] * size
        sounds = [log_mel(record(t, gen)) for t in texts]
        if number in (9, 24):
            # a button was let go too early: two frames are all there is
            sounds = [s[:2] for s in sounds]
        yield (pad_sequence(sounds, batch_first=True, padding_value=-1.0),
               torch.tensor([len(s) for s in sounds]),
               torch.cat([encode(t) for t in texts]), torch.tensor([len(t) for t in texts]))


def fit():
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(99)
    model = Recogniser()
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    criterion = nn.CTCLoss(blank=0, reduction="sum", zero_infinity=True)
    for number, (mel, frames, letters, counts) in enumerate(batches(gen, 36, 8), 1):
        logp, frames = model(mel, frames)
        logp = logp.transpose(0, 1)
        loss = criterion(logp, letters, frames, counts) / len(counts)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            each = nn.functional.ctc_loss(logp, letters, frames, counts, reduction="none")
        print(f"batch {number:2d} ctc {loss.item():8.4f} hardest {each.max().item():.2f}"
              f" too quick {int(each.isinf().sum())}")
    return model


if __name__ == "__main__":
    trained = fit()
    print("sum of |weights|", sum(p.detach().abs().sum().item() for p in trained.parameters()))
