"""
rootscan/train.py  --  minirhizotron root segmentation, BCE + clDice (Shit et al. 2021)
"""
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, STEPS, BATCH, SIZE = 2, 24, 4, 32
random.seed(SEED)
torch.manual_seed(SEED)


# ------------------------------------------------------------------ morphology
def soft_erode(img):
    p1 = -F.max_pool2d(-img, (3, 1), (1, 1), (1, 0))
    p2 = -F.max_pool2d(-img, (1, 3), (1, 1), (0, 1))
    return torch.min(p1, p2)


def soft_dilate(img):
    return F.max_pool2d(img, 3, 1, 1)


def soft_skel(img, iters=3):
    opened = soft_dilate(soft_erode(img))
    skel = F.relu(img - opened)
    for _ in range(iters):
        img = soft_erode(img)
        delta = F.relu(img - soft_dilate(soft_erode(img)))
        skel = skel + F.relu(delta - skel * delta)
    return skel


class CLDice(nn.Module):
    def __init__(self, iters=3):
        super().__init__()
        self.iters = iters

    def forward(self, prob, target):
        sp, st = soft_skel(prob, self.iters), soft_skel(target, self.iters)
        tprec = (sp * target).sum((1, 2, 3)) / sp.sum((1, 2, 3))
        tsens = (st * prob).sum((1, 2, 3)) / st.sum((1, 2, 3))
        return 1 - (2 * tprec * tsens / (tprec + tsens)).mean()


# ------------------------------------------------------------------ network
class RootNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 5, padding=2)
        self.body = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=2, dilation=2), nn.InstanceNorm2d(width, affine=True),
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x = self.stem(x)
        return self.head(F.relu(x + self.body(x)))


# ------------------------------------------------------------------ data
def draw_root(mask):
    x = random.uniform(6, SIZE - 6)
    for y in range(random.randint(0, 6), random.randint(SIZE - 8, SIZE)):
        x = min(max(x + random.uniform(-1.2, 1.2), 2), SIZE - 3)
        mask[0, y, int(x) - 1:int(x) + 2] = 1.0


def scan(n_roots):
    mask = torch.zeros(1, SIZE, SIZE)
    for _ in range(n_roots):
        draw_root(mask)
    return mask * 0.8 + 0.25 * torch.randn(1, SIZE, SIZE), mask


# tube 14, window by window from the surface to the bottom of the tube
counts = [random.choice([1, 2, 2, 3]) for _ in range(STEPS * BATCH)]
counts[41] = 0      # stone
counts[75] = 0      # air pocket
windows = [scan(n) for n in counts]

net, cldice = RootNet(), CLDice()
optim = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-4)

for step in range(STEPS):
    chunk = windows[step * BATCH:(step + 1) * BATCH]
    x, y = torch.stack([c[0] for c in chunk]), torch.stack([c[1] for c in chunk])
    logits = net(x)
    bce = F.binary_cross_entropy_with_logits(logits, y)
    cl = cldice(torch.sigmoid(logits), y)
    loss = 0.5 * bce + 0.5 * cl
    optim.zero_grad()
    loss.backward()
    optim.step()
    print("step %d  loss %.4f  (bce %.4f, cldice %.4f)" % (step + 1, loss.item(), bce.item(), cl.item()), flush=True)

print("final", float(sum(p.detach().pow(2).sum() for p in net.parameters()).sqrt()))
