"""Wear of zebra crossings from a street camera: CNN in bfloat16 autocast, blocks recomputed in the backward.

A thread draws the pictures ahead. Dead columns of the sensor come as NaN and are filled in; a picture that is dead
altogether makes its batch unusable, and such a batch is left out.
"""
import queue
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CLASSES = ["fresh", "worn", "gone", "repainted", "missing"]


class Camera(threading.Thread):
    def __init__(self, batches, size=16, ahead=3):
        super().__init__(daemon=True)
        self.batches, self.size = batches, size
        self.out = queue.Queue(maxsize=ahead)
        self.gen = torch.Generator().manual_seed(64)

    def picture(self, level):
        g = self.gen
        label = int(torch.randint(0, 4, (1,), generator=g))        # "missing" never occurs
        stripes = (torch.arange(32) // 4 % 2).float().expand(32, 32)
        contrast = (1.0, 0.5, 0.08, 1.3)[label]
        img = contrast * stripes + (0.4 if label == 3 else 0.0)
        img = img + (0.15 + 0.5 * level) * torch.randn(32, 32, generator=g)
        if torch.rand(1, generator=g) < 0.2:
            img[:, int(torch.randint(0, 32, (1,), generator=g))] = float("nan")
        if torch.rand(1, generator=g) < 0.004:
            img.fill_(float("nan"))
        return img[None], label

    def run(self):
        for b in range(self.batches):
            level = 0.0 if b < 14 else (0.6 if b < 28 else 1.2)    # day, dusk, night: harder by jumps
            images, labels = zip(*(self.picture(level) for _ in range(self.size)))
            self.out.put((torch.stack(images), torch.tensor(labels)))
        self.out.put(None)

    def __iter__(self):
        while (item := self.out.get()) is not None:
            yield item


class Residual(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.norm = nn.GroupNorm(4, c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1, stride=2)

    def forward(self, x):
        return F.relu(self.skip(x) + self.norm(self.conv2(F.relu(self.conv1(x)))))


class WearNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.stages = nn.ModuleList([Residual(16, 24), Residual(24, 32), Residual(32, 48)])
        self.head = nn.Linear(48, len(CLASSES))

    def forward(self, x):
        mean = x.nanmean(dim=(1, 2, 3), keepdim=True)
        x = torch.where(x.isnan(), mean, x)
        x = self.stem(x - mean)
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False)
        return self.head(x.mean(dim=(2, 3)))


def accuracy_by_class(out, y):
    return [((out.argmax(1) == y) & (y == c)).sum().item() / max(1, n) if (n := int((y == c).sum())) else float("nan")
            for c in range(len(CLASSES))]


def main():
    torch.manual_seed(64)
    net = WearNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.08, momentum=0.9, nesterov=True)
    camera = Camera(batches=40)
    camera.start()
    taken = 0
    for number, (x, y) in enumerate(camera, 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
        loss = F.cross_entropy(out.float(), y)
        if not torch.isfinite(loss):
            print(f"batch {number} left out: a dead picture", flush=True)
            continue
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        taken += 1
        print(f"batch {number} step {taken} loss {loss.item():.7f} "
              + " ".join(f"{n}={a:.3f}" for n, a in zip(CLASSES, accuracy_by_class(out, y))), flush=True)
    camera.join()
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
