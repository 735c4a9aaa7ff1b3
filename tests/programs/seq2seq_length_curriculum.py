"""A sequence-to-sequence copier whose sentences grow from stage to stage; the loss is summed over tokens."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(10)
torch.set_num_threads(1)

VOCABULARY, START = 14, 0
STAGES = [(12, 2, 1.0), (12, 6, 1.0), (12, 14, 0.5), (6, 3, 0.0)]      # steps, length, teacher forcing


class Encoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, size)
        self.rnn = nn.GRU(size, size, batch_first=True)

    def forward(self, ids):
        return self.rnn(self.embed(ids))


class Decoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, size)
        self.cell = nn.GRUCell(2 * size, size)
        self.out = nn.Linear(size, VOCABULARY)

    def forward(self, token, hidden, memory, future):
        scores = torch.einsum("bd,btd->bt", hidden, memory)
        scores = scores.masked_fill(future, -torch.inf)              # never all of them: the first is always open
        context = torch.einsum("bt,btd->bd", scores.softmax(-1), memory)
        hidden = self.cell(torch.cat([self.embed(token), context], dim=-1), hidden)
        logits = self.out(hidden)
        forbidden = torch.zeros(VOCABULARY, dtype=torch.bool)
        forbidden[START] = True                                      # the start token is never produced
        return logits.masked_fill(forbidden, -torch.inf), hidden


def run_batch(encoder, decoder, ids, forcing):
    memory, hidden = encoder(ids)
    hidden = hidden[0]
    token = torch.full((len(ids),), START)
    total = 0.0
    for t in range(ids.shape[1]):
        future = torch.arange(ids.shape[1]).expand_as(ids) > t + 1
        logits, hidden = decoder(token, hidden, memory, future)
        total = total + F.cross_entropy(logits, ids[:, t], reduction="sum")
        token = ids[:, t] if torch.rand(1).item() < forcing else logits.argmax(-1)
    return total


def main():
    encoder, decoder = Encoder(24), Decoder(24)
    optimizers = [torch.optim.Adam(encoder.parameters(), lr=3e-3),
                  torch.optim.Adagrad(decoder.parameters(), lr=2e-2)]
    step = 0
    for stage, (steps, length, forcing) in enumerate(STAGES):
        for _ in range(steps):
            ids = torch.randint(1, VOCABULARY, (16, length))
            loss = run_batch(encoder, decoder, ids, forcing)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 5.0)
            for optimizer in optimizers:
                optimizer.step()
            step += 1
            print(f"step {step} stage {stage} loss {loss.item():.2f} norm {norm.item():.2f}")


main()
