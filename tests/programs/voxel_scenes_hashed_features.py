# Sparse indoor scenes as voxels: features live in one hash table shared by all scenes,
# a small head predicts the material of each occupied voxel, neighbours should look alike.
import torch
import torch.nn.functional as F

torch.manual_seed(SEED := 5)
SLOTS, WIDTH, MATERIALS, EXTENT = 1021, 6, 4, 24
PRIMES = torch.tensor([73856093, 19349663, 83492791])


def slot_of(xyz):
    h = xyz * PRIMES
    return (h[:, 0] ^ h[:, 1] ^ h[:, 2]) % SLOTS


def make_scene(rng):
    """A few boxes' shells; returns occupied voxels, their material, and index pairs of neighbours."""
    seen = {}
    for _ in range(3):
        corner = torch.randint(0, EXTENT - 4, (3,), generator=rng)
        size = torch.randint(2, 4, (3,), generator=rng)
        for dx in range(int(size[0])):
            for dy in range(int(size[1])):
                for dz in range(int(size[2])):
                    x, y, z = (corner + torch.tensor([dx, dy, dz])).tolist()
                    seen[x, y, z] = min(3, 2 * (z // 12) + y // 12)
    keys = list(seen)
    where = {k: i for i, k in enumerate(keys)}
    left, right = [], []
    for (x, y, z), i in where.items():
        for other in ((x + 1, y, z), (x, y + 1, z), (x, y, z + 1)):
            if other in where:
                left.append(i)
                right.append(where[other])
    material = torch.tensor([seen[k] for k in keys])
    return torch.tensor(keys), material, torch.tensor(left), torch.tensor(right)


table = torch.nn.Parameter(0.1 * torch.randn(SLOTS, WIDTH))
head = torch.nn.Sequential(torch.nn.Linear(WIDTH + 3, 24), torch.nn.ReLU(), torch.nn.Linear(24, MATERIALS))
opt = torch.optim.RMSprop([{"params": [table], "lr": 4e-3}, {"params": head.parameters(), "lr": 1e-2}])
rng = torch.Generator().manual_seed(41)

for scene in range(1, 36):
    xyz, material, left, right = make_scene(rng)
    feat = table[slot_of(xyz)]
    logits = head(torch.cat([feat, xyz / EXTENT], dim=1))
    fit = F.cross_entropy(logits, material)
    rough = (feat[left] - feat[right]).square().sum(dim=1).sqrt().mean()
    loss = fit + 0.1 * rough
    opt.zero_grad()
    loss.backward()
    opt.step()
    right_share = (logits.argmax(1) == material).float().mean()
    print(f"scene {scene} voxels {len(xyz)} loss {loss.item():.4f} rough {rough.item():.4f} acc {right_share.item():.2f}")

energy = table.detach().square().sum() + sum(p.detach().square().sum() for p in head.parameters())
print("squared weights %.5f" % energy.item())
