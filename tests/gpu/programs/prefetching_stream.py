import torch
import torch.nn as nn
import torch.nn.functional as F


class Prefetcher:
    """copies the next batch on a stream of its own"""

    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            x, y = next(self.loader)
        except StopIteration:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = x.cuda(non_blocking=True).float().div_(255.0), y.cuda(non_blocking=True)

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            for t in batch:
                t.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


torch.manual_seed(1)
images = torch.randint(0, 256, (640, 48), dtype=torch.uint8)
labels = images[:, 0].long() // 64
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, labels), batch_size=32, shuffle=True, pin_memory=True
)
model = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
step = 0
for epoch in range(3):
    for x, y in Prefetcher(loader):
        step += 1
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print("epoch", epoch, "step", step, "loss", f"{loss.item():.5f}")
print("weights", sum(p.detach().double().square().sum().item() for p in model.parameters()))
