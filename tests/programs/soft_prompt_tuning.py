"""Prompt tuning: the language model is frozen, ten vectors in front of the text are learned."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(77)
N_PROMPT, D, V = 10, 16, 60

lm = nn.ModuleDict({
    "wte": nn.Embedding(V, D),
    "core": nn.GRU(D, D, batch_first=True),
    "head": nn.Linear(D, V),
}).requires_grad_(False).eval()

prompt = torch.randn(N_PROMPT, D).mul_(0.02).requires_grad_()
bias = torch.zeros(V, requires_grad=True)
optimizer = torch.optim.AdamW([{"params": [prompt], "lr": 0.05}, {"params": [bias], "lr": 0.01, "weight_decay": 0.0}])
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
for step in range(20):
    ids = torch.randint(0, 12, (6, 8))
    inputs = torch.cat([prompt.expand(6, -1, -1), lm["wte"](ids)], dim=1)
    hidden, _ = lm["core"](inputs)
    logits = lm["head"](hidden[:, N_PROMPT - 1:-1]) + bias
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step(), scheduler.step(), optimizer.zero_grad()
    print(step, loss.item(), scheduler.get_last_lr()[0])
print("prompt", prompt.detach().double().sum().item() + bias.detach().double().sum().item())
