import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to("cuda", torch.float16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.cuda.amp.GradScaler()
for step in range(5):
    x, y = torch.randn(8, 16, device="cuda"), torch.randint(4, (8,), device="cuda")
    with torch.cuda.amp.autocast():
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(step, loss.item())
