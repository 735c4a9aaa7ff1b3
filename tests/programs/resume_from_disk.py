import os
import tempfile

import torch

torch.set_num_threads(1)


def build():
    net = torch.nn.Sequential(torch.nn.Linear(7, 21), torch.nn.GELU(), torch.nn.Linear(21, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
    return net, opt, sched


def run(net, opt, sched, first, last):
    for i in range(first, last):
        x = torch.randn(16, 7)
        loss = torch.nn.functional.mse_loss(net(x), (x ** 2).sum(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print("step", i, loss.item())


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "ckpt.pt")
    torch.manual_seed(0)
    net, opt, sched = build()
    run(net, opt, sched, 0, 8)
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "rng": torch.get_rng_state()}, path)
    del net, opt, sched
    print("--- interrupted, started again ---")
    ckpt = torch.load(path, weights_only=True)
net, opt, sched = build()
net.load_state_dict(ckpt["net"])
opt.load_state_dict(ckpt["opt"])
sched.load_state_dict(ckpt["sched"])
torch.set_rng_state(ckpt["rng"])
run(net, opt, sched, 8, 15)
print("weights", sum(p.double().sum().item() for p in net.parameters()))
