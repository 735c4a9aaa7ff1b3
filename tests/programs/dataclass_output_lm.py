import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)


@dataclass
class LMOutput:
    log_probs: torch.Tensor
    loss: Optional[torch.Tensor] = None
    perplexity: Optional[float] = None


class CharLM(nn.Module):
    def __init__(self, n_chars, dim):
        super().__init__()
        self.embed = nn.Embedding(n_chars, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, n_chars)

    def forward(self, x, y=None, temperature=1.0):
        h, _ = self.rnn(self.embed(x))
        probs = torch.softmax(self.head(h) / temperature, dim=-1)
        log_probs = torch.log(probs)
        out = LMOutput(log_probs=log_probs)
        if y is not None:
            out.loss = F.nll_loss(log_probs.flatten(0, 1), y.flatten())
            out.perplexity = math.exp(min(out.loss.item(), 50))
        return out


text = "the quick brown fox jumps over the lazy dog and runs away from the angry bear " * 4
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
lm = CharLM(len(chars), 24)
opt = torch.optim.Adam(lm.parameters(), lr=3e-3)

temperature = 1.0
for it in range(16):
    idx = torch.randint(0, len(data) - 17, (8,))
    xb = torch.stack([data[i:i + 16] for i in idx])
    yb = torch.stack([data[i + 1:i + 17] for i in idx])
    out = lm(xb, yb, temperature)
    opt.zero_grad(set_to_none=True)
    out.loss.backward()
    opt.step()
    print(it, out.loss.item(), out.perplexity)
    temperature *= 0.5
print("checksum", sum(p.double().sum().item() for p in lm.parameters()))
