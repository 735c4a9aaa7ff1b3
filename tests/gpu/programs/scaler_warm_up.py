import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
torch.backends.cudnn.deterministic = True
net = (
    nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 64, 10),
    )
    .cuda()
    .to(memory_format=torch.channels_last)
)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**28)
gen = torch.Generator().manual_seed(0)
for step in range(1, 41):
    x = torch.randn(16, 3, 16, 16, generator=gen).pin_memory().cuda(non_blocking=True)
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(10, (16,), generator=gen).cuda()
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(net(x), y)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    scaler.step(opt)
    scaler.update()
    if step % 5 == 0:
        print(f"{step:3d} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
print("w", sum(p.detach().double().abs().sum().item() for p in net.parameters()))
