import torch
from torch import nn

G = 9.80665
torch.manual_seed(77)

# belt-worn accelerometer: 60 clips of 24 samples, three axes
clips = torch.randn(60, 24, 3) * 0.25
clips[..., 2] += 8.6
falls = torch.arange(60) % 3 == 0
clips[falls, 12:, 0] += 7.0
clips[falls, 12:, 2] -= 6.5
clips[39, 12, 2] = 14.9            # this volunteer missed the mattress

def tilt(batch):
    return torch.acos(batch[..., 2:] / G)

def jitter(batch, g):
    return batch * (1 + 0.02 * torch.randn(len(batch), 1, 1, generator=g))

def clip_stream(epochs, size):
    g = torch.Generator().manual_seed(6)
    for _ in range(epochs):
        for idx in torch.randperm(len(clips), generator=g).split(size):
            raw = jitter(clips[idx], g)
            yield torch.cat([raw[..., :2] / G, tilt(raw)], -1), falls[idx].float()

net = nn.Sequential(nn.Flatten(), nn.Linear(72, 12), nn.Hardswish(), nn.Linear(12, 1), nn.Flatten(0))
opt = torch.optim.ASGD(net.parameters(), lr=0.05)
plan = torch.optim.lr_scheduler.StepLR(opt, 10, 0.8)
hits = 0
for n, (x, y) in enumerate(clip_stream(3, 6), 1):
    z = net(x)
    loss = nn.functional.soft_margin_loss(z, 2 * y - 1)
    opt.zero_grad(); loss.backward(); opt.step(); plan.step()
    hits += int(((z > 0) == (y > 0)).sum())
    print("clip batch %d  loss %s  hits %d" % (n, repr(loss.item()), hits))
print(sum(p.detach().sum().item() for p in net.parameters()))
