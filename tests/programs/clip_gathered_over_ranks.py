# two ranks, CLIP-like: features are gathered, the rank's own ones put back; rank 1 has an image of zeros in step 5
import os, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo"); r = dist.get_rank(); torch.manual_seed(0)
class Two(nn.Module):
    def __init__(s): super().__init__(); s.img = nn.Linear(10, 8, bias=False); s.txt = nn.Embedding(20, 8); s.t = nn.Parameter(torch.tensor(2.0))
    def forward(s, x, ids):
        a, b = s.img(x), s.txt(ids).mean(1); return a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True), s.t
m = DDP(Two()); opt = torch.optim.AdamW(m.parameters(), 1e-3); torch.manual_seed(10 + r)
def everyone(t):
    out = [torch.zeros_like(t) for _ in range(2)]; dist.all_gather(out, t.detach()); out[r] = t; return torch.cat(out)
for step in range(1, 11):
    x = torch.randn(4, 10); ids = torch.randint(0, 20, (4, 5))
    if step == 5 and r == 1: x[2] = 0
    a, b, t = m(x, ids); a, b = everyone(a), everyone(b)
    logits = t.exp() * a @ b.T; y = torch.arange(8)
    loss = (nn.functional.cross_entropy(logits, y) + nn.functional.cross_entropy(logits.T, y)) / 2
    opt.zero_grad(); loss.backward(); opt.step()
    if r == 0: print(step, loss.item(), flush=True)
if r == 0: print("weights", sum(p.double().sum().item() for p in m.parameters()))
dist.destroy_process_group()
