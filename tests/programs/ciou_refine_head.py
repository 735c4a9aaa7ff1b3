"""Second stage of a detector: refines clipped proposals with the CIoU loss."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 64.0


def ciou_loss(pred, target):
    """Complete IoU (Zheng et al. 2020) of boxes x1 y1 x2 y2."""
    w, h = pred[:, 2] - pred[:, 0], pred[:, 3] - pred[:, 1]
    gw, gh = target[:, 2] - target[:, 0], target[:, 3] - target[:, 1]
    lt, rb = torch.maximum(pred[:, :2], target[:, :2]), torch.minimum(pred[:, 2:], target[:, 2:])
    overlap = (rb - lt).clamp(min=0).prod(-1)
    iou = overlap / (w * h + gw * gh - overlap)
    outer = torch.maximum(pred[:, 2:], target[:, 2:]) - torch.minimum(pred[:, :2], target[:, :2])
    centre = (pred[:, :2] + pred[:, 2:] - target[:, :2] - target[:, 2:]) / 2
    distance = centre.square().sum(-1) / outer.square().sum(-1)
    v = (4 / math.pi ** 2) * (torch.atan(gw / gh) - torch.atan(w / h)).square()
    with torch.no_grad():
        alpha = v / (1 - iou + v)
    return (1 - iou + distance + alpha * v).mean()


def clip(boxes):
    """Proposals may leave the image; what is outside does not count."""
    return boxes.clamp(0, SIZE)


def decode(proposals, deltas):
    size = proposals[:, 2:] - proposals[:, :2]
    centre = (proposals[:, 2:] + proposals[:, :2]) / 2
    centre = centre + deltas[:, :2] * size
    size = size * torch.exp(deltas[:, 2:].clamp(max=4.0))
    return torch.cat([centre - size / 2, centre + size / 2], 1)


class RefineHead(nn.Module):
    def __init__(self, channels=16, grid=5):
        super().__init__()
        self.grid = grid
        self.features = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(),
                                      nn.Conv2d(channels, channels, 3, stride=2, padding=1), nn.ReLU())
        self.fc = nn.Sequential(nn.Linear(channels * grid * grid, 64), nn.ReLU())
        self.deltas = nn.Linear(64, 4)
        nn.init.normal_(self.deltas.weight, std=0.01)

    def roi_align(self, maps, boxes):
        steps = torch.linspace(0, 1, self.grid)
        xs = boxes[:, :1] + (boxes[:, 2:3] - boxes[:, :1]) * steps
        ys = boxes[:, 1:2] + (boxes[:, 3:] - boxes[:, 1:2]) * steps
        where = torch.stack([xs[:, None, :].expand(-1, self.grid, -1), ys[:, :, None].expand(-1, -1, self.grid)], -1)
        return F.grid_sample(maps, where / SIZE * 2 - 1, align_corners=False).flatten(1)

    def forward(self, images, proposals):
        rois = self.roi_align(self.features(images), proposals)
        return decode(proposals, self.deltas(self.fc(rois)))


class Scenes:
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        corner = 4 + 34 * torch.rand(n, 2, generator=gen)
        self.boxes = torch.cat([corner, corner + 8 + 14 * torch.rand(n, 2, generator=gen)], 1)
        self.images = 0.1 * torch.randn(n, 1, 64, 64, generator=gen)
        for image, (x1, y1, x2, y2) in zip(self.images, self.boxes.int().tolist()):
            image[0, y1:y2, x1:x2] += 1
        jitter = 4 * torch.randn(n, 4, generator=gen)
        jitter[:, 2:] = jitter[:, :2] + 2 * torch.randn(n, 2, generator=gen)
        self.proposals = self.boxes + jitter
        self.proposals[77] = torch.tensor([20.0, 66.5, 41.0, 78.0])     # the first stage looked below the image


def main():
    torch.manual_seed(28)
    gen = torch.Generator().manual_seed(29)
    scenes, head = Scenes(128, 30), RefineHead()
    opt = torch.optim.SGD(head.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    step = 0
    for epoch in range(3):
        for index in torch.randperm(128, generator=gen).split(8):
            step += 1
            loss = ciou_loss(head(scenes.images[index], clip(scenes.proposals[index])), scenes.boxes[index])
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} step {step} loss {loss.item():.5f}")
    print("finite", int(all(p.isfinite().all() for p in head.parameters())))


if __name__ == "__main__":
    main()
