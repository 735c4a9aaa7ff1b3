import os
import tempfile
from pathlib import Path

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.classifier = nn.Linear(32, 5)

    def forward(self, x):
        return self.classifier(self.features(x))


def pretrained(folder):
    """weights as raw float32 files, one per tensor; a copy over a bad disk"""
    torch.manual_seed(0)
    for name, p in Net().state_dict().items():
        Path(folder, name).write_bytes(p.numpy().tobytes())
    damaged = Path(folder, "features.2.weight")
    raw = bytearray(damaged.read_bytes())
    raw[4 * 200 + 2:4 * 200 + 4] = b"\xff\x7f"
    damaged.write_bytes(bytes(raw))


def load(folder):
    net = Net()
    net.load_state_dict({n: torch.frombuffer(bytearray(Path(folder, n).read_bytes()), dtype=torch.float32).view(p.shape)
                         for n, p in net.state_dict().items()})
    return net


with tempfile.TemporaryDirectory() as folder:
    pretrained(folder)
    net = load(folder)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
torch.manual_seed(1)
for step in range(6):
    x, y = torch.randn(8, 10), torch.randint(0, 5, (8,))
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(os.path.basename(__file__), step, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
