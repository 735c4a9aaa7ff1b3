import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(8); torch.set_num_threads(1)
teacher = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 6)).requires_grad_(False)
student = nn.Linear(8, 6)
opt = torch.optim.AdamW(student.parameters(), lr=2e-2)
for step in range(13):
    x = torch.randn(16, 8)
    gain = 1.0 if step != 9 else 400.0          # one shard of teacher logits was stored without temperature
    with torch.no_grad():
        t = teacher(x) * gain
    s = student(x)
    weight = torch.exp(s.gather(1, t.argmax(1, keepdim=True)) - t.amin(1, keepdim=True))
    loss = (weight / (1 + weight) * (F.log_softmax(s, 1) * -F.softmax(t / 2, 1)).sum(1, keepdim=True)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step + 1} {loss.item()!r}")
print("weights", sum(p.double().sum().item() for p in student.parameters()))
