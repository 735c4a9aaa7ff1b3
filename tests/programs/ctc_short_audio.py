import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(5)
torch.set_num_threads(1)
BLANK = 0


class Acoustic(nn.Module):
    def __init__(self, n_mels=12, n_tokens=20):
        super().__init__()
        self.conv = nn.Conv1d(n_mels, 24, kernel_size=3, stride=2, padding=1)
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(48, n_tokens)

    def forward(self, mels, lengths):
        h = torch.relu(self.conv(mels.transpose(1, 2))).transpose(1, 2)
        h, _ = self.gru(h)
        return self.proj(h).log_softmax(-1), (lengths + 1) // 2


def utterances():
    out = []
    for i in range(40):
        frames = 30 + (i * 7) % 20
        words = 4 + i % 5
        if i == 22:
            frames, words = 10, 9
        out.append((torch.randn(frames, 12), torch.randint(1, 20, (words,))))
    return out


model = Acoustic()
ctc = nn.CTCLoss(blank=BLANK)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
corpus = utterances()
for step in range(10):
    batch = corpus[step * 4:step * 4 + 4]
    mels = pad_sequence([m for m, _ in batch], batch_first=True)
    in_len = torch.tensor([len(m) for m, _ in batch])
    targets = torch.cat([t for _, t in batch])
    tgt_len = torch.tensor([len(t) for _, t in batch])
    logp, out_len = model(mels, in_len)
    loss = ctc(logp.transpose(0, 1), targets, out_len, tgt_len)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} ctc {loss.item()}")
print("weights", sum(p.double().sum().item() for p in model.parameters()))
