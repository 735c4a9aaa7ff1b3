# Land cover from scanned relief sheets (rock, wood, meadow, glacier). U-Net, deep supervision on the half-size
# map, generalised Dice (Sudre 2017) alternating with cross-entropy.
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = ["rock", "wood", "meadow", "glacier"]
LOSSES = {}


def register(name):
    def deco(fn):
        LOSSES[name] = fn
        return fn
    return deco


class Sheet:
    """Batch of tiles; .level(k) gives the labels of the k-th supervision output."""

    def __init__(self, image, label):
        self.image, self.label = image, label

    def to(self, device):
        return Sheet(self.image.to(device), self.label.to(device))

    def level(self, k):
        return self.label[:, :: 2 ** k, :: 2 ** k]


@register("xent")
def xent(logits, label):
    return F.cross_entropy(logits, label)


@register("gdl")
def generalised_dice(logits, label):
    p = logits.softmax(1)
    t = F.one_hot(label, len(CLASSES)).permute(0, 3, 1, 2).to(p.dtype)
    area = t.sum((0, 2, 3))
    weight = 1.0 / area ** 2                # small classes count as much as big ones
    inter = (weight * (p * t).sum((0, 2, 3))).sum()
    union = (weight * (p + t).sum((0, 2, 3))).sum()
    return 1 - 2 * inter / union


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.d0, self.d1, self.mid = block(3, w), block(w, 2 * w), block(2 * w, 2 * w)
        self.u1, self.u0 = block(4 * w, w), block(2 * w, w)
        self.out0, self.out1 = nn.Conv2d(w, 4, 1), nn.Conv2d(w, 4, 1)

    def forward(self, x):
        a = self.d0(x)
        b = self.d1(F.max_pool2d(a, 2))
        m = F.interpolate(self.mid(F.max_pool2d(b, 2)), scale_factor=2)
        h1 = self.u1(torch.cat([m, b], 1))
        h0 = self.u0(torch.cat([F.interpolate(h1, scale_factor=2), a], 1))
        return [self.out0(h0), self.out1(h1)]


def tiles(n, size=16):
    g = torch.Generator().manual_seed(1903)
    shade = torch.tensor([[.4, .4, .4], [.1, .5, .2], [.7, .8, .3], [.9, .95, 1.]])
    for i in range(n):
        label = torch.randint(0, 3, (4, size // 4, size // 4), generator=g)
        label = label.repeat_interleave(4, 1).repeat_interleave(4, 2)
        if i == 18:
            # sheet 1187: all that is left of the glacier is one pixel
            label[2, 7, 11] = 3
        else:
            label[1, 2:9, 3:12] = 3
        image = shade[label].permute(0, 3, 1, 2) + 0.1 * torch.randn(4, 3, size, size, generator=g)
        yield Sheet(image, label)


def choose(step):
    if step <= 6:
        return "xent", (1.0, 0.5)
    if step % 3 == 1:
        return "gdl", (1.0, 0.5)
    return ("gdl", (1.0, 0.0)) if step % 3 == 2 else ("xent", (1.0, 0.25))


def main():
    torch.manual_seed(40)
    net = UNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step, sheet in enumerate(tiles(30), 1):
        sheet = sheet.to("cpu")
        name, weights = choose(step)
        loss = torch.zeros(())
        for k, (out, w) in enumerate(zip(net(sheet.image), weights)):
            if w > 0:
                loss = loss + w * LOSSES[name](out, sheet.level(k))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"tile batch {step:2d}  {name:4s}  {loss.item():.6f}")
    print("weights", sum(p.detach().double().sum() for p in net.parameters()).item())


if __name__ == "__main__":
    main()
