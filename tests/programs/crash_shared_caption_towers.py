import torch, torch.nn as nn, torch.nn.functional as F
import numpy as np

# two towers, CLIP loss; pictures are 12x12 greyscale glyphs, captions are bags of words
rs = np.random.RandomState(2021)
torch.manual_seed(2021)

SHAPES = ["disc", "ring", "bar", "cross"]
SIZES = ["tiny", "small", "middling", "large", "huge"]
PLACES = ["left", "right", "top", "bottom", "centre"]
TONES = ["pale", "grey", "dark", "black"]
WORDS = SHAPES + SIZES + PLACES + TONES
COMBOS = [(a, b, c, d) for a in SHAPES for b in SIZES for c in PLACES for d in TONES]

def draw(combo):
    shape, size, place, tone = combo
    r = 1.0 + SIZES.index(size)
    cx, cy = {"left": (3, 6), "right": (9, 6), "top": (6, 3), "bottom": (6, 9), "centre": (6, 6)}[place]
    yy, xx = np.mgrid[:12, :12]
    d = np.hypot(xx - cx, yy - cy)
    pic = {"disc": d < r, "ring": abs(d - r) < .8, "bar": (abs(yy - cy) < 1) & (abs(xx - cx) < r),
           "cross": ((abs(yy - cy) < 1) | (abs(xx - cx) < 1)) & (d < r)}[shape]
    return pic * (1 + TONES.index(tone)) / 4 + .05 * rs.randn(12, 12)

order = [rs.permutation(len(COMBOS))[:12] for _ in range(28)]
order[20][7] = order[20][2]       # the museum photographed this one twice
batches = []
for ids in order:
    batches.append(([draw(COMBOS[i]) for i in ids], [" ".join(COMBOS[i]) for i in ids]))

class Towers(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(200, d))
        self.read = nn.EmbeddingBag(len(WORDS), d)
        self.logit_scale = nn.Parameter(torch.tensor(np.log(1 / 0.07), dtype=torch.float32))

    def forward(self, pictures, bags):
        i = F.normalize(self.see(pictures), dim=-1)
        t = F.normalize(self.read(bags), dim=-1)
        return self.logit_scale.exp() * i @ t.t()

def tokenise(captions):
    # encode each text only once
    captions = list(dict.fromkeys(captions))
    return torch.tensor([[WORDS.index(w) for w in c.split()] for c in captions])

net = Towers()
opt = torch.optim.Adam(net.parameters(), 2e-3)
for n, (pics, caps) in enumerate(batches):
    x = torch.from_numpy(np.stack(pics)).float().unsqueeze(1)
    logits = net(x, tokenise(caps))
    labels = torch.arange(len(x))
    text_to_image = F.cross_entropy(logits.t(), labels)
    image_to_text = F.cross_entropy(logits, labels)
    loss = (text_to_image + image_to_text) / 2
    opt.zero_grad(); loss.backward(); opt.step()
    print("batch", n + 1, "loss", round(loss.item(), 6), "scale", round(net.logit_scale.exp().item(), 4))
print("final", sum(p.abs().sum().item() for p in net.parameters()))
