"""CTC recogniser for harbour radio (call signs and berth numbers), DDP on two ranks.

The squelch cuts some calls: more letters than frames are left. For those CTC is infinite; zero_infinity drops them from
the training loss, and the log counts them by their infinite loss.
"""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

LETTERS = 14            # 0 is the blank
BANDS = 16
UPDATES = 32


def call(g, clipped):
    """Each letter is a band pattern held for four to seven frames, with a gap between letters."""
    n = int(torch.randint(3, 7, (1,), generator=g))
    text = torch.randint(1, LETTERS, (n,), generator=g)
    if clipped:
        text = text.repeat_interleave(2)        # doubled letters need a blank between them
    proto = torch.randn(LETTERS, BANDS, generator=torch.Generator().manual_seed(9))
    frames = []
    for c in text.tolist():
        k = int(torch.randint(4, 8, (1,), generator=g))
        frames.append(proto[c].expand(k, -1))
        frames.append(torch.zeros(2, BANDS))
    sound = torch.cat(frames)
    sound = sound + 0.3 * torch.randn(sound.shape, generator=g)
    if clipped:
        sound = sound[:10]
    return sound, text


def batches(rank, size=6):
    g = torch.Generator().manual_seed(1234 + rank)
    for b in range(1, UPDATES + 1):
        items = [call(g, torch.rand((), generator=g).item() < 0.12 or (rank == 1 and b == 20 and i < 4))
                 for i in range(size)]
        xs, ys = zip(*items)
        yield (pad_sequence(list(xs), batch_first=True), torch.tensor([len(x) for x in xs]),
               torch.cat(list(ys)), torch.tensor([len(y) for y in ys]))


class Radio(nn.Module):
    def __init__(self, h=40):
        super().__init__()
        self.front = nn.Conv1d(BANDS, h, 3, stride=2, padding=1)
        self.rnn = nn.GRU(h, h, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * h, LETTERS)

    def forward(self, x, lens):
        z = F.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        lens = (lens - 1) // 2 + 1
        packed = pack_padded_sequence(z, lens, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(y).log_softmax(-1).transpose(0, 1), lens


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    model = DistributedDataParallel(Radio())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    ema = {k: v.detach().clone() for k, v in model.module.state_dict().items()}
    for it, (x, xl, y, yl) in enumerate(batches(rank), 1):
        lp, tl = model(x, xl)
        loss = F.ctc_loss(lp, y, tl, yl, blank=0, zero_infinity=True)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        with torch.no_grad():
            each = F.ctc_loss(lp, y, tl, yl, blank=0, reduction="none")
            stats = torch.tensor([loss.item(), float(torch.isinf(each).sum()), each.mean().item()])
            dist.all_reduce(stats)
            for k, v in model.module.state_dict().items():
                ema[k].lerp_(v, 0.1)
        if rank == 0:
            print(f"update {it:2d}  ctc {stats[0].item() / world:.6f}  clipped {int(stats[1])}  "
                  f"per call {stats[2].item() / world:.4f}", flush=True)
    if rank == 0:
        print(f"ema sum {sum(v.double().sum().item() for v in ema.values()):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
