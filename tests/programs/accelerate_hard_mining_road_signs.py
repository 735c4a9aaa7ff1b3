# Road signs, 12 classes, three outlines.  Only the hard ones of each micro-batch count.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed

set_seed(5)
accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)

# class -> outline (0 round, 1 triangle, 2 rectangle): four classes each
OUTLINE = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
FORBIDDEN = OUTLINE[None, :] != torch.arange(3)[:, None]          # outline x class


def make_signs(n=280, side=12):
    y = torch.randint(0, 12, (n,))
    glyph = nn.functional.interpolate(torch.randn(12, 3, 4, 4), scale_factor=side // 4)
    img = glyph[y] + 0.5 * torch.randn(n, 3, side, side)
    night = torch.rand(n) < 0.1
    img[night] *= 0.2
    return TensorDataset(img, OUTLINE[y], y)


class SignNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.GELU(), nn.MaxPool2d(2))
        self.classify = nn.Linear(16 * 9, 12)

    def forward(self, image, outline):
        z = self.classify(self.features(image).flatten(1))
        return z.masked_fill(FORBIDDEN[outline], float("-inf"))


class HardOnly(nn.Module):
    """Mean over the samples whose loss is above a floor; nothing at all if none is."""

    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, logits, y):
        each = nn.functional.cross_entropy(logits, y, reduction="none")
        rank = torch.where(each.detach() > self.floor, each.detach(), torch.tensor(float("-inf")))
        top = rank.topk(6)
        use = top.indices[torch.isfinite(top.values)]
        return each[use].sum() / max(1, len(use)), len(use)


loader = DataLoader(make_signs(), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(1))
net = SignNet()
opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 30)
net, opt, loader = accelerator.prepare(net, opt, loader)
criterion = HardOnly(floor=0.1)

update, window, hard = 0, [], 0
for epoch in range(6):
    for image, outline, y in loader:
        with accelerator.accumulate(net):
            loss, n = criterion(net(image, outline), y)
            accelerator.backward(loss)
            opt.step()
            if accelerator.sync_gradients:
                sched.step()
            opt.zero_grad()
        window.append(loss.item())
        hard += n
        if accelerator.sync_gradients:
            update += 1
            accelerator.print(f"epoch {epoch} update {update:2d} losses "
                              + " ".join(f"{v:.4f}" for v in window) + f" hard {hard}")
            window, hard = [], 0

weights = net.state_dict().values()
print("absolute weights", round(sum(w.abs().sum().item() for w in weights), 4))
