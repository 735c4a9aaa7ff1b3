"""Chat fine-tuning on one micro-batch per step; prompts are masked with -100."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
IGNORE, MAX_LEN, VOCAB = -100, 16, 64


def encode(prompt_len, answer_len):
    ids = torch.randint(3, VOCAB, (prompt_len + answer_len,))
    labels = ids.clone()
    labels[:prompt_len] = IGNORE
    ids, labels = ids[:MAX_LEN], labels[:MAX_LEN]
    pad = MAX_LEN - len(ids)
    return F.pad(ids, (0, pad)), F.pad(labels, (0, pad), value=IGNORE)


class CausalLM(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.wte, self.rnn, self.lm_head = nn.Embedding(VOCAB, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, VOCAB, bias=False)

    def forward(self, input_ids, labels=None):
        logits = self.lm_head(self.rnn(self.wte(input_ids))[0])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)
        return {"loss": loss, "logits": logits}


dataset = [encode(5 + i % 4, 6) for i in range(24)]
dataset[10], dataset[11] = encode(19, 5), encode(17, 8)
model = CausalLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(12):
    ids, labels = (torch.stack(t) for t in zip(*dataset[2 * step:2 * step + 2]))
    out = model(input_ids=ids, labels=labels)
    optimizer.zero_grad()
    out["loss"].backward()
    optimizer.step()
    print(step + 1, out["loss"].item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
