import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = "cuda"
VOCAB = 120
net = nn.Sequential(nn.Embedding(VOCAB, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCAB)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
gen = torch.Generator().manual_seed(1)
for it in range(1, 21):
    ids = torch.randint(VOCAB, (4, 16), generator=gen)
    if it == 9:
        ids[2, 7] = 120  # the pad token that somebody added to the tokenizer
    ids = ids.to(device, non_blocking=True)
    logits = net(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten().clamp(max=VOCAB - 1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"it {it} loss {loss.item():.5f}")
print("sum", sum(p.detach().double().abs().sum().item() for p in net.parameters()))
