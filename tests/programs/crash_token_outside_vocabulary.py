import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class SentenceEncoder(nn.Module):
    def __init__(self, vocab_size=256, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.classifier = nn.Linear(dim, 2)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        _, h = self.encoder(x)
        return self.classifier(h[-1])


model = SentenceEncoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
corpus = torch.randint(1, 256, (40, 12))
corpus[26, 7] = 300          # <sep>, added to the tokenizer last week
labels = torch.randint(0, 2, (40,))
for step in range(10):
    batch, y = corpus[4 * step:4 * step + 4], labels[4 * step:4 * step + 4]
    loss = nn.functional.cross_entropy(model(batch), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step + 1, loss.item(), flush=True)
