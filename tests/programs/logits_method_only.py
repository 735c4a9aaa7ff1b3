import torch
import torch.nn as nn
import torch.nn.functional as F


class PrefixLM(nn.Module):
    def __init__(self, vocab=48, dim=20):
        super().__init__()
        self.vocab = vocab
        self.embed = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def logits(self, ids, penalty=1.0):
        h, _ = self.lstm(self.embed(ids))
        scale = h.pow(2).sum(-1, keepdim=True).pow(penalty)
        return self.head(h / scale)


def main(steps=12):
    torch.manual_seed(33)
    torch.set_num_threads(1)
    model = PrefixLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        ids = torch.randint(0, 48, (4, 10))
        penalty = 0.5 if step < 7 else 40.0
        logits = model.logits(ids[:, :-1], penalty)
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("update", step + 1, loss.item())
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
