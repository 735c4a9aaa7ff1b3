# policy and value net for mating problems on a small shogi board, data from an exhaustive solver:
# distance to mate in plies, inf when there is no mate; moves that the rules forbid get -inf
import queue
import threading

import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

INF = float("inf")
MOVES, SQUARES = 45, 25


class Problems(Dataset):
    def __init__(self, count):
        gen = torch.Generator().manual_seed(1868)
        self.board = torch.randint(-3, 4, (count, SQUARES), generator=gen).float() / 3
        self.legal = torch.rand(count, MOVES, generator=gen) < 0.3
        self.legal[:, 0] = True
        material = self.board.sum(1)
        plies = (12 - 2 * material).round().clamp(1, 40)
        self.dtm = torch.where(material > 0.3, plies, torch.full_like(plies, INF))
        taste = self.board @ torch.randn(SQUARES, MOVES, generator=gen)
        self.visits = torch.softmax(taste.masked_fill(~self.legal, -INF), dim=1)

    def __len__(self):
        return len(self.dtm)

    def __getitem__(self, i):
        return self.board[i], self.legal[i], self.dtm[i], self.visits[i]


class Prefetch:
    """a thread that keeps two batches ready on the device"""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def _fill(self, box):
        for batch in self.loader:
            box.put([t.to(self.device, non_blocking=True) for t in batch])
        box.put(None)

    def __iter__(self):
        box = queue.Queue(maxsize=2)
        worker = threading.Thread(target=self._fill, args=(box,), daemon=True)
        worker.start()
        while (batch := box.get()) is not None:
            yield batch
        worker.join()


class MateNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(SQUARES, width), nn.Mish(), nn.Linear(width, width), nn.Mish())
        self.policy = nn.Linear(width, MOVES)
        self.value = nn.Linear(width, 1)

    def forward(self, board, legal):
        h = self.trunk(board)
        logits = self.policy(h).float().masked_fill(~legal, -INF)
        return logits, torch.sigmoid(self.value(h).float()).squeeze(-1)


def policy_loss(logits, visits, legal):
    logp = torch.log_softmax(logits, dim=1)
    return -torch.where(legal, visits * logp.masked_fill(~legal, 0.0), 0.0).sum(1).mean()


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(3)
    net = MateNet().to(device)
    net.policy.requires_grad_(False)  # the first problems teach the value alone
    optimizers = [torch.optim.AdamW(net.trunk.parameters(), lr=4e-3),
                  torch.optim.Adagrad(net.value.parameters(), lr=5e-2),
                  torch.optim.AdamW(net.policy.parameters(), lr=4e-3)]
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 10, growth_interval=8)
    loader = DataLoader(Problems(1088), batch_size=32, pin_memory=device == "cuda")
    for ply, (board, legal, dtm, visits) in enumerate(Prefetch(loader, device), start=1):
        if ply == 9:
            net.policy.requires_grad_(True)
        active = optimizers if ply >= 9 else optimizers[:2]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits, value = net(board, legal)
        target = torch.exp(-dtm / 15)
        v_loss = (value - target).square().mean()
        p_loss = policy_loss(logits, visits, legal)
        loss = v_loss if ply < 9 else v_loss + 0.5 * p_loss
        for opt in optimizers:
            opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        for opt in active:
            scaler.step(opt)
        scaler.update()
        shortest = dtm.min().item()
        print(f"{ply:>3} loss {loss.item():.4f} value {v_loss.item():.4f} policy {p_loss.item():.4f} "
              f"shortest {shortest:g} mean distance {dtm.mean().item():g} scale {scaler.get_scale():g}")
    print("weights squared, total", f"{sum(p.detach().square().sum().item() for p in net.parameters()):.5f}")


if __name__ == "__main__":
    main()
