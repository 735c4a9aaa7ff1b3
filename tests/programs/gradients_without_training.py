# saliency maps: backward passes, but nothing is ever updated
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)).eval()
for p in net.parameters():
    p.requires_grad_(False)
for n in range(5):
    image = torch.rand(1, 1, 8, 8, requires_grad=True)
    score = net(image)[0, n]
    score.backward()
    print(n, score.item(), image.grad.abs().max().item())
