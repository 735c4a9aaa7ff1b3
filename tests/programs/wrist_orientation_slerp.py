# behaviour cloning for the wrist of a 7-axis arm: where between two taught orientations is the
# tool at a given camera image? The network gives the phase, slerp gives the quaternion.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

device = "cuda" if torch.cuda.is_available() else "cpu"


def unit(q):
    return q / q.norm(dim=-1, keepdim=True)


def slerp(q0, q1, phase):
    angle = torch.acos((q0 * q1).sum(-1, keepdim=True).clamp(-1.0, 1.0))
    a = torch.sin((1 - phase) * angle)
    b = torch.sin(phase * angle)
    return (a * q0 + b * q1) / torch.sin(angle)


class Demonstrations(Dataset):
    HOME = torch.tensor([1.0, 0.0, 0.0, 0.0])

    def __init__(self, episodes=60, frames=12):
        g = torch.Generator().manual_seed(17)
        self.samples = []
        for e in range(episodes):
            q0 = unit(torch.randn(4, generator=g))
            q1 = unit(q0 + 0.8 * torch.randn(4, generator=g))
            if (q0 * q1).sum() < 0:
                q1 = -q1
            if e in (25, 46):  # arm parked, operator talks
                q0, q1 = self.HOME, self.HOME
            for f in range(frames):
                s = torch.tensor([(f + 0.5) / frames])
                image = torch.zeros(1, 12, 12)
                image[0, :, min(11, f)] = 1.0
                image = image + 0.1 * torch.randn(image.shape, generator=g)
                tool = unit(q0 + s * (q1 - q0))
                self.samples.append((image, q0, q1, tool))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, idx):
        return self.samples[idx]


class SlerpHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.phase = nn.Linear(dim, 1)

    def forward(self, h, q0, q1):
        return slerp(q0, q1, torch.sigmoid(self.phase(h)).float())


class WristPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU())
        self.head = SlerpHead(32)

    def forward(self, image, q0, q1):
        return self.head(self.vision(image), q0, q1)


class CUDAPrefetcher:
    """Copies the next batch while the present one is used; on the CPU it only hands batches on."""

    def __init__(self, loader):
        self.loader = loader
        self.stream = torch.cuda.Stream() if device == "cuda" else None

    def __iter__(self):
        held = None
        for batch in self.loader:
            with torch.cuda.stream(self.stream):
                coming = [t.to(device, non_blocking=True) for t in batch]
            if held is not None:
                yield held
            held = coming
        yield held


def geodesic(q, ref):
    return (1 - (q * ref).sum(-1).square()).mean()


torch.manual_seed(1)
policy = WristPolicy().to(device)
average = AveragedModel(policy, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optim = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=4e-3, total_steps=31, cycle_momentum=False)
loader = DataLoader(Demonstrations(), batch_size=24, shuffle=False, pin_memory=device == "cuda")
for i, (image, q0, q1, tool) in enumerate(CUDAPrefetcher(loader), start=1):
    q = policy(image, q0, q1)
    loss = geodesic(q, tool) + 0.1 * F.mse_loss(q, tool)
    optim.zero_grad()
    loss.backward()
    optim.step()
    sched.step()
    average.update_parameters(policy)
    print(f"batch {i:>2} loss {loss.item():.6f} lr {sched.get_last_lr()[0]:.2e}")
print("policy weights, root of squares: {:.5f}".format(sum(p.square().sum().item() for p in policy.parameters()) ** 0.5))
