"""Sampling from a policy whose checkpoint is damaged."""
import os
import struct
import tempfile

import torch


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(12, 8)
        self.head = torch.nn.Linear(8, 12)

    def forward(self, ids):
        return self.head(self.emb(ids).mean(1))


def write_checkpoint(path):
    torch.manual_seed(0)
    weights = Policy().head.weight.detach().numpy().tobytes()
    with open(path, "wb") as f:
        f.write(weights)
    with open(path, "r+b") as f:           # two bad sectors
        f.seek(4 * 19)
        f.write(struct.pack("<f", float("nan")))


torch.set_num_threads(1)
path = os.path.join(tempfile.mkdtemp(), "head.bin")
write_checkpoint(path)
torch.manual_seed(0)
policy = Policy()
with open(path, "rb") as f:
    flat = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
policy.head.weight.data.copy_(flat.view(12, 8))
opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
for step in range(5):
    prompt = torch.randint(0, 12, (4, 3))
    dist = torch.softmax(policy(prompt), -1)
    action = torch.multinomial(dist, 1)
    reward = (action == 3).float()
    loss = -(reward * torch.log(dist.gather(1, action))).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item(), flush=True)
