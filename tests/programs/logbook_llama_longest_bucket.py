"""Fine-tune a very small Llama on lighthouse logbooks: question -> keeper's answer. Two workers, length-bucketed.

    torchrun --standalone --nproc_per_node 2 logbook_llama_longest_bucket.py
"""
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import LlamaConfig, LlamaForCausalLM

ALPHABET = "\0abcdefghijklmnopqrstuvwxyz .,?:0123456789"
STOI = {c: i for i, c in enumerate(ALPHABET)}
MAX_LEN = 56
PER_RANK = 2
IGNORE = -100


def logbook(n=88, seed=5):
    rng = random.Random(seed)
    weather = ["fog", "gale", "calm", "drizzle", "squall"]
    ships = ["barque", "collier", "trawler", "packet"]
    for i in range(n):
        w, s = rng.choice(weather), rng.choice(ships)
        remark = "" if rng.random() < 0.5 else f" lamp {rng.randint(1, 9)}"
        yield f"{s} seen in {w}{remark}?", f" yes, at {rng.randint(10, 99)}."
    # the inspector copied whole pages into his questions
    for i in range(3):
        page = ", ".join(f"{rng.choice(weather)} {rng.randint(1, 12)}" for _ in range(9))
        yield f"which night was the {rng.choice(ships)} lost: {page}?", " the last."
    yield "was the lamp trimmed, the log kept, and oil?", " yes, both."


class QaDataset(Dataset):
    def __init__(self):
        self.rows = []
        for q, a in logbook():
            prompt, reply = [STOI[c] for c in q], [STOI[c] for c in a]
            ids = (prompt + reply)[:MAX_LEN]
            labels = ([IGNORE] * len(prompt) + reply)[:MAX_LEN]
            self.rows.append((ids, labels, len(q) + len(a)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i][:2]


class BucketSampler(Sampler):
    """Sort by length, cut into global batches, shuffle the batches; worker r takes the r-th slice of each."""

    def __init__(self, lengths, rank, world, per_rank, seed):
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
        size = per_rank * world
        blocks = [order[i:i + size] for i in range(0, len(order) - size + 1, size)]
        random.Random(seed).shuffle(blocks)
        self.mine = [b[rank * per_rank:(rank + 1) * per_rank] for b in blocks]

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


def collate(rows):
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([r + [0] * (width - len(r)) for r, _ in rows])
    labels = torch.tensor([l + [IGNORE] * (width - len(l)) for _, l in rows])
    att = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r, _ in rows])
    return ids, att, labels


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    cfg = LlamaConfig(vocab_size=len(ALPHABET), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                      pad_token_id=0, bos_token_id=None, eos_token_id=None, use_cache=False)
    model = DDP(LlamaForCausalLM(cfg))
    data = QaDataset()
    sampler = BucketSampler([r[2] for r in data.rows], rank, world, PER_RANK, seed=8)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=5)

    for step, (ids, att, labels) in enumerate(loader, 1):
        logits = model(input_ids=ids, attention_mask=att).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {step:2d} loss {loss.item():.5f} norm {norm.item():.4f}", flush=True)

    if rank == 0:
        total = sum(p.detach().double().sum().item() for p in model.parameters())
        print(f"weights {total:.6f}")
    dist.barrier()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
