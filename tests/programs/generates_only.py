import torch
import torch.nn as nn


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 30)

    @torch.inference_mode()
    def sample(self, n, temperature=0.8, top_p=0.9):
        ids, h = torch.zeros(1, 1, dtype=torch.long), None
        for _ in range(n):
            y, h = self.rnn(self.emb(ids[:, -1:]), h)
            logits = self.out(y[:, -1]) / temperature
            sorted_logits, order = logits.sort(descending=True)
            cut = sorted_logits.softmax(-1).cumsum(-1) > top_p
            cut[:, 0] = False
            sorted_logits[cut] = -float("inf")
            choice = torch.multinomial(sorted_logits.softmax(-1), 1)
            ids = torch.cat([ids, order.gather(1, choice)], 1)
        return ids[0].tolist()


torch.manual_seed(1)
torch.set_num_threads(1)
model = Sampler().eval()
for _ in range(3):
    print(model.sample(12))
