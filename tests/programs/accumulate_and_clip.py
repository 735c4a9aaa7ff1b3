import argparse
import math

import torch
import torch.nn as nn


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--micro-batch", type=int, default=3)
    p.add_argument("--clip-norm", type=float, default=0.5)
    p.add_argument("--clip-value", type=float, default=0.2)
    return p.parse_args([])


def main(args):
    torch.set_num_threads(1)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Embedding(40, 16), nn.Flatten(), nn.Linear(64, 40))
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    data = torch.randint(0, 40, (90, 4))
    micro = data.split(args.micro_batch)
    pending, updates, running = 0, 0, 0.0
    for n, ids in enumerate(micro):
        loss = nn.functional.cross_entropy(model(ids), ids[:, 0])
        (loss / args.accum).backward()
        running += loss.item() / args.accum
        pending += 1
        if pending == args.accum or n == len(micro) - 1:      # 30 micro-batches: the last group has only two
            norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip_norm)
            nn.utils.clip_grad_value_(model.parameters(), args.clip_value)
            opt.step()
            opt.zero_grad()
            updates += 1
            print(f"update {updates} loss {running!r} norm {norm.item()!r} ppl {math.exp(running):.3f}")
            pending, running = 0, 0.0
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


main(get_args())
