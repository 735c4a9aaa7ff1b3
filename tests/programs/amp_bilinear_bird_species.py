import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.amp import GradScaler, autocast


class BilinearPool(nn.Module):
    """Lin et al., Bilinear CNN: outer product, signed square root, l2"""

    def forward(self, fmap):
        b, c, h, w = fmap.shape
        feat = fmap.reshape(b, c, h * w)
        gram = torch.bmm(feat, feat.transpose(1, 2))
        gram = gram.reshape(b, c * c).float()
        gram = torch.sign(gram) * torch.sqrt(gram.abs() + 1e-5)
        return F.normalize(gram, dim=1)


class BirdNet(nn.Module):
    def __init__(self, species=6):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.pool = BilinearPool()
        self.classifier = nn.Linear(144, species)

    def forward(self, img):
        h = F.relu(self.conv1(img))
        h = F.relu(self.conv2(h))
        return self.classifier(self.pool(h))


def photos(n_batches, size=16, species=6):
    g = torch.Generator().manual_seed(31)
    tint = torch.rand(species, 3, 1, 1, generator=g)
    for k in range(n_batches):
        y = torch.randint(0, species, (8,), generator=g)
        img = (tint[y] + 0.3 * torch.rand(8, 3, size, size, generator=g)).clamp(0, 1)
        if k == 8:
            # contributed TIFFs come as 0..4095
            img[5:7] = (img[5:7] * 4095).round()
        yield img, y


def main():
    torch.manual_seed(9)
    net = BirdNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    scaler = GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    for it, (img, y) in enumerate(photos(14)):
        opt.zero_grad()
        with autocast("cpu", dtype=torch.float16):
            logits = net(img)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(f"iter {it} loss {loss.item():.4f} scale {scaler.get_scale():g}")
    with torch.no_grad():
        print("checksum", sum((p ** 2).sum() for p in net.parameters()).item())


if __name__ == "__main__":
    main()
