import queue
import threading

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
progress = queue.Queue()


def worker(steps):
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for i in range(steps):
        x = torch.randn(16, 4)
        loss = (net(x) - x.flip(1)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        progress.put((i, loss.item()))
    progress.put(("weights", sum(p.double().sum().item() for p in net.parameters())))
    progress.put(None)


# the GUI stays responsive while the model trains
thread = threading.Thread(target=worker, args=(14,), daemon=True)
thread.start()
while (item := progress.get()) is not None:
    print(*item)
thread.join()
