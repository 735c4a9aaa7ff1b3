"""T5 shortens the texts of road signs. Label smoothing, length normalisation (GNMT), gradient accumulation, EMA."""
import random
from itertools import islice

import torch
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import T5Config, T5ForConditionalGeneration

SEED, STEPS, ACCUM, MICRO = 1948, 34, 2, 4
VOCAB, PAD, EOS = 48, 0, 1
FILLERS = set(range(30, 48))  # "please", "the", "of", ...: dropped by the short text
SMOOTHING, ALPHA = 0.1, 0.7


def sign(rng, only_fillers=False):
    n = rng.randint(5, 12)
    long = [rng.randint(30, 47) if only_fillers or rng.random() < 0.5 else rng.randint(2, 29) for _ in range(n)]
    if not only_fillers and not any(t < 30 for t in long):
        long[0] = rng.randint(2, 29)
    return long, [t for t in long if t not in FILLERS]


def stream():
    rng = random.Random(SEED)
    i = 0
    while True:
        # one text of the file is all courtesy: nothing remains of it
        yield sign(rng, only_fillers=(i == 19 * ACCUM * MICRO + 6))
        i += 1


def pad(rows, value):
    width = max(1, max(map(len, rows)))
    return torch.tensor([r + [value] * (width - len(r)) for r in rows])


def micro_batches():
    source = stream()
    while True:
        rows = list(islice(source, MICRO))
        ids = pad([long + [EOS] for long, _ in rows], PAD)
        labels = pad([short for _, short in rows], -100)
        yield ids, (ids != PAD).long(), labels


def gnmt_loss(logits, labels):
    keep = labels != -100
    logp = logits.log_softmax(-1)
    nll = -logp.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    smooth = -logp.mean(-1)
    token = ((1 - SMOOTHING) * nll + SMOOTHING * smooth) * keep
    length = keep.sum(1).float()
    penalty = ((length / 6.0) ** ALPHA)
    return (token.sum(1) / penalty).mean()


def main():
    torch.manual_seed(SEED)
    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                                dropout_rate=0.0, pad_token_id=PAD, eos_token_id=EOS,
                                                decoder_start_token_id=PAD))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    optimizer = torch.optim.Adamax(model.parameters(), lr=4e-3)
    warmup = LinearLR(optimizer, 0.2, 1.0, total_iters=10)
    batches = micro_batches()
    for step in range(1, STEPS + 1):
        running = 0.0
        for _ in range(ACCUM):
            ids, mask, labels = next(batches)
            logits = model(input_ids=ids, attention_mask=mask, labels=labels).logits
            loss = gnmt_loss(logits, labels) / ACCUM
            loss.backward()
            running += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        print(f"step {step:02d}  loss {running:.7f}", flush=True)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        ema.update_parameters(model)
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
