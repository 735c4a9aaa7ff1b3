"""Set prediction on thermal frames (a small DETR): optimal matching, then classification and box losses."""
from itertools import permutations

import torch
import torch.nn as nn
import torch.nn.functional as F

QUERIES, CLASSES, SIDE = 6, 2, 32        # class 2 is "no object"


def frame(gen):
    """Raw counts of the bolometer: a warm field, one to three hot objects (0) or cold ones (1)."""
    image = 3000 + 40 * torch.randn(SIDE, SIDE, generator=gen)
    boxes, labels = [], []
    for _ in range(int(torch.randint(1, 4, (1,), generator=gen))):
        w, h = (int(torch.randint(5, 11, (1,), generator=gen)) for _ in range(2))
        x, y = int(torch.randint(SIDE - w, (1,), generator=gen)), int(torch.randint(SIDE - h, (1,), generator=gen))
        kind = int(torch.randint(CLASSES, (1,), generator=gen))
        image[y:y + h, x:x + w] += 900 if kind == 0 else -900
        boxes.append([(x + w / 2) / SIDE, (y + h / 2) / SIDE, w / SIDE, h / SIDE])
        labels.append(kind)
    return image, torch.tensor(boxes), torch.tensor(labels)


def video(n, seed):
    gen = torch.Generator().manual_seed(seed)
    frames = [frame(gen) for _ in range(n)]
    frames[104][0].fill_(0)                 # flat-field correction: the shutter is closed for one frame
    return frames


def stretch(image):
    """Contrast stretch to 0..1 of each frame, as the viewer does."""
    low, high = image.min(), image.max()
    return (image - low) / (high - low)


def assign(cost):
    """The cheapest one-to-one assignment of queries to targets. So few of them that all can be tried."""
    cheapest, chosen = float("inf"), None
    columns = range(len(cost[0]))
    for rows in permutations(range(len(cost)), len(columns)):
        total = sum(cost[r][c] for r, c in zip(rows, columns))
        if total < cheapest:
            cheapest, chosen = total, rows
    return torch.tensor(list(chosen)), torch.arange(len(columns))


class SmallDETR(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
                                      nn.Conv2d(16, dim, 3, stride=2, padding=1), nn.ReLU())
        self.position = nn.Parameter(0.1 * torch.randn(64, dim))
        self.queries = nn.Parameter(torch.randn(QUERIES, dim))
        layer = nn.TransformerDecoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.classes, self.boxes = nn.Linear(dim, CLASSES + 1), nn.Linear(dim, 4)

    def forward(self, x):
        memory = self.backbone(x).flatten(2).transpose(1, 2) + self.position
        h = self.decoder(self.queries.expand(len(x), -1, -1), memory)
        return self.classes(h), self.boxes(h).sigmoid()


class SetCriterion:
    def __init__(self, box_weight=5.0, empty_weight=0.2):
        self.box_weight = box_weight
        self.class_weight = torch.tensor([1.0, 1.0, empty_weight])

    @torch.no_grad()
    def match(self, logits, boxes, target_labels, target_boxes):
        cost = self.box_weight * torch.cdist(boxes, target_boxes, p=1) - logits.softmax(-1)[:, target_labels]
        return assign(cost.tolist())

    def __call__(self, logits, boxes, targets):
        wanted = torch.full(logits.shape[:2], CLASSES)
        box_loss, count = 0.0, 0
        for i, (target_boxes, target_labels) in enumerate(targets):
            query, target = self.match(logits[i], boxes[i], target_labels, target_boxes)
            wanted[i, query] = target_labels[target]
            box_loss = box_loss + (boxes[i, query] - target_boxes[target]).abs().sum()
            count += len(query)
        class_loss = F.cross_entropy(logits.transpose(1, 2), wanted, weight=self.class_weight)
        return class_loss + self.box_weight * box_loss / count


def main():
    torch.manual_seed(60)
    frames, model, criterion = video(160, 61), SmallDETR(), SetCriterion()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 21):
        batch = frames[(step - 1) * 8:step * 8]
        images = torch.stack([stretch(image) for image, _, _ in batch]).unsqueeze(1)
        loss = criterion(*model(images), [(boxes, labels) for _, boxes, labels in batch])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        print(f"step {step} loss {loss.item():.5f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
