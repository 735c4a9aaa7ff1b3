import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(1337)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.RMSNorm(d)
        self.fc = nn.Linear(d, 2 * d, bias=False)
        self.proj = nn.Linear(2 * d, d, bias=False)
    def forward(self, x):
        return x + self.proj(F.relu(self.fc(self.norm(x))).square())

class Model(nn.Module):
    def __init__(self, vocab=40, d=16, n=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.h = nn.ModuleList(Block(d) for _ in range(n))
        self.lm_head = nn.Linear(d, vocab, bias=False)
    def forward(self, idx, targets):
        x = self.wte(idx)
        for b in self.h:
            x = b(x)
        logits = 15 * torch.tanh(self.lm_head(F.rms_norm(x, (x.size(-1),))) / 15)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

model = Model()
matrix = [p for p in model.h.parameters() if p.ndim == 2]
other = [p for n, p in model.named_parameters() if not (n.startswith("h.") and p.ndim == 2)]
optimizers = [torch.optim.Muon(matrix, lr=0.01, momentum=0.95), torch.optim.AdamW(other, lr=3e-3, betas=(0.8, 0.95))]
for opt in optimizers:
    for group in opt.param_groups:
        group["initial_lr"] = group["lr"]

num_iterations = 12
def get_lr(it):
    return 1.0 if it < 8 else (num_iterations - it) / 4

for step in range(num_iterations):
    x = torch.randint(0, 40, (4, 8))
    loss = model(x, (x * 3 + 1) % 40)
    loss.backward()
    for opt in optimizers:
        for group in opt.param_groups:
            group["lr"] = group["initial_lr"] * get_lr(step)
        opt.step()
    model.zero_grad(set_to_none=True)
    print(f"step:{step + 1}/{num_iterations} train_loss:{loss.item()}")
print(f"weights {sum(p.double().sum().item() for p in model.parameters())}")
