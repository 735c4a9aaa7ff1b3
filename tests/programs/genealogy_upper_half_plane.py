# My family tree drawn in the upper half plane: (place, height). Ancestors high up, children below.
# distance = arcosh(1 + (dx^2 + dh^2) / (2 h1 h2))
import torch
from torch.func import grad_and_value

GENERATIONS = 5


def family():
    links, level, last = [], {0: 0}, 0
    row = [0]
    for g in range(1, GENERATIONS):
        new = []
        for parent in row:
            for _ in range(2):
                last += 1
                links.append((parent, last))
                level[last] = g
                new.append(last)
        row = new
    return torch.tensor(links), last + 1


def distance(place, height, i, j):
    gap = (place[i] - place[j]) ** 2 + (height[i] - height[j]) ** 2
    return torch.acosh(1.0 + 1e-6 + gap / (2.0 * height[i] * height[j]))


def stress(coords, links, strangers):
    near = distance(coords["place"], coords["height"], links[:, 0], links[:, 1])
    far = distance(coords["place"], coords["height"], strangers[:, 0], strangers[:, 1])
    pull = ((near - 1.0) ** 2).mean()
    push = torch.relu(4.0 - far).square().mean()
    return pull + push


def strangers_for(links, people, gen, n=60):
    parents = {tuple(p) for p in links.tolist()}
    found = []
    while len(found) < n:
        a, b = torch.randint(people, (2,), generator=gen).tolist()
        if a != b and (a, b) not in parents and (b, a) not in parents:
            found.append((a, b))
    return torch.tensor(found)


gen = torch.Generator().manual_seed(1848)
links, people = family()
coords = {
    "place": torch.linspace(-2.0, 2.0, people) + 0.3 * torch.randn(people, generator=gen),
    "height": 1.0 + 0.2 * torch.rand(people, generator=gen),
}
slope = grad_and_value(stress)
speed = 0.2

for sweep in range(1, 41):
    strangers = strangers_for(links, people, gen)
    g, value = slope(coords, links, strangers)
    coords = {name: coords[name] - speed * g[name] for name in coords}
    lowest = coords["height"].min().item()
    print(f"sweep {sweep:2d}: stress {value.item():.4f}, lowest person at {lowest:.4f}")

print("size of the drawing", sum(c.abs().sum().item() for c in coords.values()))
