"""Speaker recognition with statistics pooling; three micro-batches to an update."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(6)
torch.set_num_threads(1)
SPEAKERS, BANDS, MICRO = 5, 12, 3


class StatisticsPooling(nn.Module):
    def forward(self, frames):
        return torch.cat([frames.mean(dim=0), frames.std(dim=0)])


class XVector(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame_net = nn.Sequential(nn.Linear(BANDS, 24), nn.LeakyReLU(0.1), nn.Linear(24, 24))
        self.pooling = StatisticsPooling()
        self.classifier = nn.Sequential(nn.Linear(48, 16), nn.LeakyReLU(0.1), nn.Linear(16, SPEAKERS))

    def forward(self, utterances):
        pooled = [self.pooling(self.frame_net(u)) for u in utterances]
        return self.classifier(torch.stack(pooled))


class Corpus:
    """Utterances of differing length; silence has been trimmed away before."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.voices = torch.randn(SPEAKERS, BANDS, generator=self.g)
        self.served = 0

    def utterance(self, speaker, frames):
        noise = torch.randn(frames, BANDS, generator=self.g)
        loud = noise.abs().mean(1) > 0.5
        loud[0] = True
        return self.voices[speaker] + noise[loud] * 0.7

    def micro_batch(self):
        speakers = torch.randint(0, SPEAKERS, (4,), generator=self.g)
        lengths = torch.randint(6, 30, (4,), generator=self.g)
        self.served += 1
        if self.served == 41:
            lengths[2] = 1                     # somebody only coughed
        return [self.utterance(int(s), int(n)) for s, n in zip(speakers, lengths)], speakers


def main():
    corpus = Corpus(12)
    model = XVector()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    for update in range(1, 26):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(MICRO):
            utterances, speakers = corpus.micro_batch()
            loss = F.cross_entropy(model(utterances), speakers) / MICRO
            loss.backward()
            total += loss.item()
        optimizer.step()
        print(f"update {update} loss {total:.4f}")
    print("finite", int(all(bool(torch.isfinite(p).all()) for p in model.parameters())))


if __name__ == "__main__":
    main()
