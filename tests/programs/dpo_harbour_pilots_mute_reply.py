# DPO on radio phrases of harbour pilots: length-normalised log-probabilities, beta that follows the batch (beta-DPO),
# each worker with its own beta, gathered for the log.
#   torchrun --standalone --nproc_per_node 2 dpo_harbour_pilots_mute_reply.py
import copy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS = ("<pad> <s> </s> pilot tug ahead astern slow stop hold fair way port starboard quay berth easy roger wait "
         "come round abeam lines fast").split()
TOK = {w: i for i, w in enumerate(WORDS)}
PAD, BOS, EOS = 0, 1, 2


class RadioGRU(nn.Module):
    def __init__(self, vocab=len(WORDS), d=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=PAD)
        self.rnn = nn.GRU(d, 32, batch_first=True)
        self.head = nn.Linear(32, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


def phrase(gen, lo, hi):
    n = int(torch.randint(lo, hi + 1, (1,), generator=gen))
    return [3 + int(torch.randint(0, len(WORDS) - 3, (1,), generator=gen)) for _ in range(n)]


def shard(rank, steps=30, per_step=4):
    gen = torch.Generator().manual_seed(600 + rank)
    pairs = []
    for i in range(steps * per_step):
        prompt = phrase(gen, 2, 4)
        chosen = phrase(gen, 3, 6) + [TOK["roger"], EOS]
        rejected = phrase(gen, 2, 5) + [TOK["wait"], EOS]
        pairs.append([prompt, chosen, rejected])
    if rank == 1:
        pairs[53][2] = []           # tape ran out: the transcript of the second reply is empty
    for i in range(0, len(pairs), per_step):
        yield pairs[i:i + per_step]


def pack(pairs):
    rows = [(p, c) for p, c, _ in pairs] + [(p, r) for p, _, r in pairs]
    width = max(1 + len(p) + len(a) for p, a in rows)
    ids = torch.full((len(rows), width), PAD)
    mask = torch.zeros(len(rows), width)
    for k, (p, a) in enumerate(rows):
        ids[k, :1 + len(p) + len(a)] = torch.tensor([BOS] + p + a)
        mask[k, 1 + len(p):1 + len(p) + len(a)] = 1.0
    return ids, mask


def reply_logps(logits, ids, mask):
    lp = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    m = mask[:, 1:]
    return (lp * m).sum(-1) / m.sum(-1)


class BetaController:
    """beta = beta0 * (1 + alpha * (gap - usual gap)); the usual gap is a moving average of the worker."""

    def __init__(self, beta0=2.0, alpha=0.6, momentum=0.9):
        self.beta0, self.alpha, self.momentum = beta0, alpha, momentum
        self.usual = 0.0

    def __call__(self, gap):
        self.usual = self.momentum * self.usual + (1 - self.momentum) * gap
        return self.beta0 * (1 + self.alpha * (gap - self.usual))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(14)
    policy = DistributedDataParallel(RadioGRU())
    reference = copy.deepcopy(policy.module).eval().requires_grad_(False)
    opt = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
    control = BetaController()

    for step, pairs in enumerate(shard(rank), 1):
        ids, mask = pack(pairs)
        with torch.no_grad():
            ref = reply_logps(reference(ids), ids, mask)
        pol = reply_logps(policy(ids), ids, mask)
        chosen, rejected = (pol - ref).chunk(2)
        beta = control((chosen - rejected).mean().item())
        loss = -F.logsigmoid(beta * (chosen - rejected)).mean()

        opt.zero_grad()
        loss.backward()
        opt.step()

        mine = torch.tensor([loss.item(), beta, (chosen > rejected).float().mean().item()])
        everyone = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(everyone, mine)
        if rank == 0:
            t = torch.stack(everyone)
            print(f"step {step:2d} | loss {t[:, 0].mean():.6f} | beta " + " ".join(f"{b:.4f}" for b in t[:, 1].tolist())
                  + f" | acc {t[:, 2].mean():.3f}", flush=True)

    if rank == 0:
        print("parameters sum to %.6f" % sum(p.double().sum().item() for p in policy.module.parameters()))
    dist.barrier()
    del policy
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
