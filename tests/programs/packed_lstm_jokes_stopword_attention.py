"""
Does a joke end in a pun? Packed bi-LSTM, additive attention that looks at content words only.

Some jokes are made of stop words alone ("who is it? it is me!"). They have nothing to attend to: their attention row is
0/0, we set it to zero, and the classifier sees only the final state.
"""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

PAD, N_STOP, VOCAB = 0, 12, 90


class Jokes(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(n):
            length = int(torch.randint(3, 15, (1,), generator=g))
            top = N_STOP + 1 if i % 9 == 4 else VOCAB
            words = torch.randint(1, top, (length,), generator=g)
            label = int((words % 7 == 3).any())
            self.rows.append((words, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    words = pad_sequence([w for w, _ in rows], batch_first=True, padding_value=PAD)
    return words, torch.tensor([len(w) for w, _ in rows]), torch.tensor([float(y) for _, y in rows])


class ContentAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.proj = nn.Linear(size, 24)
        self.vector = nn.Linear(24, 1, bias=False)

    def forward(self, states, content):
        score = self.vector(torch.tanh(self.proj(states))).squeeze(-1)
        alpha = torch.softmax(score.masked_fill(~content, float("-inf")), dim=1)
        alpha = torch.nan_to_num(alpha)              # rows without a content word
        return (alpha[..., None] * states).sum(1), alpha


class JokeNet(nn.Module):
    def __init__(self, width=24, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.attention = ContentAttention(2 * hidden)
        self.out = nn.Sequential(nn.Linear(4 * hidden, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        states, (last, _) = self.lstm(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, padding_value=0.0)
        content = words > N_STOP
        pooled, alpha = self.attention(states, content)
        final = torch.cat([last[0], last[1]], dim=1)
        return self.out(torch.cat([pooled, final], dim=1)).squeeze(1), alpha


def main(epochs=2, accumulate=2):
    torch.manual_seed(61)
    loader = DataLoader(Jokes(480, seed=61), batch_size=10, shuffle=True, collate_fn=collate, num_workers=1,
                        generator=torch.Generator().manual_seed(62))
    model = JokeNet()
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    step, running = 0, 0.0
    for epoch in range(epochs):
        for i, (words, lengths, label) in enumerate(tqdm(loader, disable=True)):
            logit, alpha = model(words, lengths)
            loss = loss_fn(logit, label) / accumulate
            loss.backward()
            running += loss.item()
            if (i + 1) % accumulate == 0:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 2.0, error_if_nonfinite=True)
                opt.step()
                opt.zero_grad()
                step += 1
                # entropy of the attention; log of the zeros at padding gives nan here, shown as it is
                entropy = -(alpha * alpha.log()).sum(1).mean().item()
                print(f"epoch {epoch} step {step} loss {running:.6f} norm {norm.item():.5f} entropy {entropy:.4f} "
                      f"empty {int((alpha.sum(1) == 0).sum())}", flush=True)
                running = 0.0
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
