import torch
torch.manual_seed(0); torch.set_num_threads(1)

@torch.jit.script
def soft_dice(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    num = 2.0 * (p * t).sum([1, 2])
    den = p.sum([1, 2]) + t.sum([1, 2])
    return (1.0 - num / den).mean()

class Seg(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.c2 = torch.nn.Conv2d(4, 1, 1)
    def forward(self, x):
        return torch.relu(self.c2(torch.relu(self.c1(x)))).clamp(max=1.0).squeeze(1)

seg = torch.jit.script(Seg())
with torch.no_grad():
    seg.c2.bias.fill_(0.3)
opt = torch.optim.SGD(seg.parameters(), lr=0.5)
yy, xx = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
for step in range(1, 15):
    r = torch.randint(1, 4, (6, 1, 1))
    mask = ((yy - 4) ** 2 + (xx - 4) ** 2 <= r ** 2).float()
    if step == 9:
        mask[2] = 0
    img = mask[:, None] + 0.1 * torch.randn(6, 1, 8, 8)
    if step == 9:
        img[2] = -50.0
    loss = soft_dice(seg(img), mask)
    opt.zero_grad(); loss.backward(); opt.step()
    print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in seg.parameters()))
