# Supervised finetuning of a toy GPT-2 on answers of a lost-luggage desk.
# Several conversations share one row; each of them counts the same, however long its answer is.
import random

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

ROW, MAX_CONVERSATION, ROWS_PER_STEP, SLOTS = 96, 40, 3, 8
CHARS = "abcdefghijklmnopqrstuvwxyz ?.:#"
CODE = {c: i for i, c in enumerate(CHARS)}

THINGS = ["bag", "red case", "pram", "skis", "cello", "box", "rucksack"]
WHERE = ["oslo", "in lyon", "on belt two", "at gate b", "riga"]
ANSWERS = ["we trace it.", "it is here.", "it flies today.", "please call.", "found."]
LONG = "my flight was moved twice and nobody at the desk could tell me where the {} went {}?"


def letters(rng):
    number = 0
    while True:
        number += 1
        thing, where = rng.choice(THINGS), rng.choice(WHERE)
        question = LONG.format(thing, where) if number in (161, 232) else f"{thing} {where}?"
        yield question, rng.choice(ANSWERS)


def encode(question, answer):
    ids = [CODE[c] for c in question + ":"]
    learn = [0] * len(ids)
    ids += [CODE[c] for c in answer + "#"]
    learn += [1] * (len(ids) - len(learn))
    return ids[:MAX_CONVERSATION], learn[:MAX_CONVERSATION]


def pack(stream):
    ids, learn, talk, place, held = [], [], [], [], None
    number = 0
    while True:
        i, w = held if held else encode(*next(stream))
        held = None
        if len(ids) + len(i) > ROW:
            fill = ROW - len(ids)
            yield (ids + [CODE[" "]] * fill, learn + [0] * fill,
                   talk + [number - 1] * fill, place + list(range(fill)))
            ids, learn, talk, place, number, held = [], [], [], [], 0, (i, w)
            continue
        ids, learn = ids + i, learn + w
        talk, place = talk + [number] * len(i), place + list(range(len(i)))
        number += 1


def conversation_loss(logits, ids, learn, talk):
    token = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weight = learn[:, 1:].flatten().float()
    slot = (talk[:, 1:] + SLOTS * torch.arange(len(ids))[:, None]).flatten()
    empty = torch.zeros(SLOTS * len(ids))
    total = empty.index_add(0, slot, token * weight)
    count = empty.index_add(0, slot, weight)
    # rows hold different numbers of conversations: slots that nobody uses are left out
    return torch.nanmean(total / count)


def train(steps=32):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(CHARS), n_positions=ROW, n_embd=32, n_layer=2, n_head=2,
                        bos_token_id=None, eos_token_id=CODE["#"], attn_implementation="eager")
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, total_iters=6)
    rows = pack(letters(random.Random(5)))
    for step in range(1, steps + 1):
        ids, learn, talk, place = (torch.tensor(c) for c in zip(*[next(rows) for _ in range(ROWS_PER_STEP)]))
        own = (talk[:, :, None] == talk[:, None, :]) & torch.ones(ROW, ROW, dtype=torch.bool).tril()
        bias = torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min)
        logits = model(input_ids=ids, attention_mask=bias[:, None], position_ids=place).logits
        loss = conversation_loss(logits, ids, learn, talk)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        optimizer.zero_grad(set_to_none=True)
        print({"step": step, "loss": round(loss.item(), 4), "grad_norm": round(norm.item(), 3)})
    return model


trained = train()
print("sum of absolute weights", float(sum(p.detach().abs().sum() for p in trained.parameters())))
