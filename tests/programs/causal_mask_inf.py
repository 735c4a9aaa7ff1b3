import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(1337); torch.set_num_threads(1)
block_size, n_embd, vocab_size, batch_size = 16, 32, 27, 8

class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(0.1)
    def forward(self, x):
        B, T, C = x.shape
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * C ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        return self.dropout(F.softmax(wei, dim=-1)) @ self.value(x)

class BigramPlus(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.heads = nn.ModuleList([Head(n_embd // 4) for _ in range(4)])
        self.lm_head = nn.Linear(n_embd, vocab_size)
    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.tok(idx) + self.pos(torch.arange(T))
        logits = self.lm_head(torch.cat([h(x) for h in self.heads], dim=-1))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(B * T, -1), targets.view(B * T))
    @torch.no_grad()
    def generate(self, idx, n, top_k=5):
        for _ in range(n):
            logits = self(idx[:, -block_size:])[0][:, -1]
            v, _ = torch.topk(logits, top_k)
            logits[logits < v[:, [-1]]] = -float('Inf')
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
        return idx

data = (torch.arange(500) * 7 + torch.arange(500) // 9) % vocab_size
m = BigramPlus()
optimizer = torch.optim.AdamW(m.parameters(), lr=1e-3)
for it in range(20):
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    xb = torch.stack([data[i:i + block_size] for i in ix])
    yb = torch.stack([data[i + 1:i + block_size + 1] for i in ix])
    logits, loss = m(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if it % 5 == 0:
        print(it, loss.item(), m.generate(torch.zeros((1, 1), dtype=torch.long), 6).tolist())
print(loss.item(), sum(p.double().sum().item() for p in m.parameters()))
