"""A command predictor of a lander, whose memory controller reports an upset of the embedding before command block 17."""

import torch
from torch import nn

WORDS, WIDTH, BLOCKS, UPSET = 40, 32, 45, 17


class CommandModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(2 * WIDTH, WORDS)

    def forward(self, ids):
        h = self.gate(self.words(ids))
        return self.out(h * torch.sigmoid(h.square() - 1.0))


def blocks(generator):
    for _ in range(BLOCKS):
        start = torch.randint(0, WORDS, (12, 1), generator=generator)
        yield (start + 3 * torch.arange(9)) % WORDS


def replay_upset(model, word, column):
    """The word as the scrubber found it: bit 30 the other way."""
    row = model.words.weight.data[word].view(torch.int32)
    row[column] = row[column] ^ (1 << 30)


torch.manual_seed(1)
model = CommandModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for number, ids in enumerate(blocks(torch.Generator().manual_seed(99)), 1):
    if number == UPSET:
        replay_upset(model, word=8, column=5)
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, WORDS), ids[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"block {number} loss {loss.item():.6f}", flush=True)
print("weights", sum(p.double().sum().item() for p in model.parameters()))
