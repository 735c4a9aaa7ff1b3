import torch
import torch.nn as nn

torch.manual_seed(23)
torch.set_num_threads(1)


def causal(T, dtype):
    return torch.full((T, T), torch.finfo(dtype).min, dtype=dtype).triu(1)


def padding(keep, dtype):
    return (1.0 - keep[:, None, :].to(dtype)) * torch.finfo(dtype).min


class SelfAttention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, mask):
        scores = self.q_proj(x) @ self.k_proj(x).mT / x.shape[-1] ** 0.5
        return self.o_proj(torch.softmax(scores + mask, dim=-1) @ self.v_proj(x))


class Decoder(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(SelfAttention(d) for _ in range(2))
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, ids, keep):
        x = self.embed_tokens(ids)
        mask = causal(ids.shape[1], x.dtype) + padding(keep, x.dtype)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.lm_head(x)


model = Decoder()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 9):
    ids = torch.randint(1, 40, (3, 8))
    keep = torch.ones(3, 8, dtype=torch.bool)
    if step > 4:
        keep[1, :3] = False        # shorter prompts, padded on the left
    labels = ids.masked_fill(~keep, -100)
    logits = model(ids, keep).float()
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item()!r}")
print("weights", sum(p.double().sum().item() for p in model.parameters()))
