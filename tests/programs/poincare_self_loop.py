"""Embeds a small taxonomy in the Poincare disc with a Riemannian SGD of its own."""
import torch
from torch import nn

torch.manual_seed(5)
torch.set_num_threads(1)

NAMES = ["animal", "bird", "fish", "mammal", "eagle", "owl", "finch", "trout", "cod", "eel", "dog", "cat",
         "whale", "bat", "poodle", "boxer", "lynx", "orca"]
LINKS = """bird animal
fish animal
mammal animal
eagle bird
owl bird
finch bird
trout fish
cod fish
eel fish
dog mammal
cat mammal
whale mammal
bat mammal
animal animal
poodle dog
boxer dog
lynx cat
orca whale"""


class RiemannianSGD(torch.optim.Optimizer):
    """Scales the Euclidean gradient by the inverse metric and pulls the points back into the disc."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                scale = (1 - p.pow(2).sum(-1, keepdim=True)).pow(2) / 4
                p.sub_(group["lr"] * scale * p.grad)
                length = p.norm(dim=-1, keepdim=True)
                p.copy_(torch.where(length > 0.99, p / length.clamp(min=1e-6) * 0.99, p))


class Disc(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.points = nn.Embedding(count, 2)
        nn.init.uniform_(self.points.weight, -0.05, 0.05)

    def distance(self, u, v):
        gap = (u - v).pow(2).sum(-1)
        room = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
        return torch.acosh(1 + 2 * gap / room)

    def forward(self, child, parent, strangers):
        c = self.points(child)
        near = self.distance(c, self.points(parent))
        far = self.distance(c.unsqueeze(1), self.points(strangers))
        scores = torch.cat([-near.unsqueeze(1), -far], dim=1)
        return -torch.log_softmax(scores, dim=1)[:, 0].mean()


def read_links():
    index = {name: i for i, name in enumerate(NAMES)}
    return torch.tensor([[index[a], index[b]] for a, b in (line.split() for line in LINKS.splitlines())])


def main():
    links = read_links()
    model = Disc(len(NAMES))
    optimizer = RiemannianSGD(model.parameters(), lr=0.3)
    generator = torch.Generator().manual_seed(8)
    step = 0
    for epoch in range(4):
        for start in range(0, len(links), 3):
            child, parent = links[start:start + 3].unbind(1)
            shift = torch.randint(1, len(NAMES), (len(child), 5), generator=generator)
            strangers = (child.unsqueeze(1) + shift) % len(NAMES)      # never the child itself
            loss = model(child, parent, strangers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"epoch {epoch} step {step} loss {loss.item():.5f}")
    print("all finite:", int(bool(torch.isfinite(model.points.weight).all())))


main()
