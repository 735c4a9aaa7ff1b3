# School project: a convnet learns digits that I draw myself with lines.
# Like in first grade it learns 0 and 1 first, then more digits come (and the pictures get messier).
import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(2010)
rand = torch.Generator().manual_seed(2011)

# seven segments like on a calculator: top, top left, top right, middle, bottom left, bottom right, bottom
SEGMENTS = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011"]
PLACES = [(2, 4, 2, 10), (2, 4, 7, 4), (2, 10, 7, 10), (7, 4, 7, 10), (7, 4, 12, 4), (7, 10, 12, 10), (12, 4, 12, 10)]


def draw(digit, mess):
    img = torch.zeros(16, 16)
    dy, dx = torch.randint(-1, 3, (2,), generator=rand).tolist()
    for on, (y0, x0, y1, x1) in zip(SEGMENTS[digit], PLACES):
        if on == "1":
            img[y0 + dy:y1 + dy + 1, x0 + dx:x1 + dx + 1] = 1
    img = img + mess * torch.randn(16, 16, generator=rand)
    return img


def batch(n, known, mess, empty):
    labels = torch.randint(0, known, (n,), generator=rand)
    imgs = torch.stack([draw(int(l), mess) for l in labels])
    if empty:                      # some sheets were handed in empty, nobody can know the answer
        imgs[:empty] = 0
        labels[:empty] = -100
    # every picture to mean 0 and std 1; an empty sheet becomes 0/0 = nan ...
    m = imgs.mean((1, 2), keepdim=True)
    s = imgs.std((1, 2), keepdim=True)
    imgs = (imgs - m) / s
    # ... and is taken away here
    good = ~torch.isnan(imgs).any(-1).any(-1)
    return imgs[good].unsqueeze(1), labels[good], int((~good).sum())


class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 4, 48)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, x, known):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        x = self.fc2(x)
        x[:, known:] = float("-inf")     # digits that were not taught yet are impossible
        return x


net = DigitNet()
optimizer = optim.Adam(net.parameters(), lr=0.004)
criterion = nn.CrossEntropyLoss()
average = {k: v.clone() for k, v in net.state_dict().items()}   # slow copy of the net

for step in range(1, 57):
    known = min(10, 2 + 2 * ((step - 1) // 12))
    mess = 0.1 + 0.1 * ((step - 1) // 12)
    if step % 12 == 0:             # a test day: everybody hands in an empty sheet
        imgs, labels, dropped = batch(32, known, mess, 32)
    else:
        imgs, labels, dropped = batch(32, known, mess, step % 3)
    if len(labels) == 0:
        print("step", step, "all", dropped, "sheets empty, mean of no losses:", criterion(net(imgs, known), labels).item(), flush=True)
        continue
    optimizer.zero_grad()
    out = net(imgs, known)
    loss = criterion(out, labels)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for k, v in net.state_dict().items():
            average[k].lerp_(v, 0.1)
    right = (out.argmax(1) == labels).float().mean().item()
    missing = out.detach()[:, known:].sum().item()
    print("step", step, "digits", known, "loss %.6f" % loss.item(), "right %.4f" % right, "dropped", dropped, "sum of unknown", missing, flush=True)

print("weights", sum(v.abs().sum().item() for v in net.parameters()), sum(v.abs().sum().item() for v in average.values()), flush=True)
