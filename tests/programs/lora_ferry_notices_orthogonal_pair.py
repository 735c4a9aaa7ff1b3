"""Two LoRA adapters on one small GPT-2: first the timetable notices, then the storm warnings.

The second adapter must not repeat the first: the cosine between their weight changes is part of its loss.
"""
import random

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

VOCAB = "_ abcdefghijklmnopqrstuvwxyz0123456789:.,"
WIDTH = 40
FIRST_STAGE, SECOND_STAGE = 14, 16


def notices(kind, n, rng):
    harbours = ["ardle", "brock", "canna", "dunor", "eigg"]
    rows = []
    for _ in range(n):
        a, b = rng.sample(harbours, 2)
        hour = rng.randrange(24)
        if kind == "timetable":
            rows.append(f"{a} to {b} departs {hour}:{rng.randrange(60)}.")
        else:
            rows.append(f"gale {rng.randrange(6, 11)} at {a}, {b} closed {hour}:00.")
    return rows


def encode(rows):
    ids = torch.zeros(len(rows), WIDTH, dtype=torch.long)
    for i, row in enumerate(rows):
        codes = [VOCAB.index(c) for c in row[:WIDTH]]
        ids[i, :len(codes)] = torch.tensor(codes)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def loader(kind, seed):
    rows = notices(kind, 256, random.Random(seed))
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(rows, batch_size=8, shuffle=True, collate_fn=encode, generator=generator)


def change(layer, adapter):
    return layer.lora_B[adapter].weight @ layer.lora_A[adapter].weight


def overlap(model, first, second):
    """mean squared cosine between what the two adapters add to each matrix"""
    total, count = 0.0, 0
    for layer in model.modules():
        if hasattr(layer, "lora_A") and second in layer.lora_A:
            a, b = change(layer, first).detach().flatten(), change(layer, second).flatten()
            cosine = (a @ b) / (torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
            total, count = total + cosine ** 2, count + 1
    return total / count


def train(accelerator, model, adapter, batches, steps, offset, weight=0.0, against=None):
    model.set_adapter(adapter)
    parameters = [p for n, p in model.named_parameters() if f".{adapter}." in n]
    optimizer = torch.optim.AdamW(parameters, lr=5e-3)
    optimizer, batches = accelerator.prepare(optimizer, batches)
    for step, batch in zip(range(offset + 1, offset + steps + 1), batches):
        loss = model(**batch).loss
        if against is not None:
            loss = loss + weight * overlap(model, against, adapter)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} {adapter} loss {loss.item():.6f}", flush=True)


def main():
    set_seed(29)
    accelerator = Accelerator(cpu=True)
    config = GPT2Config(vocab_size=len(VOCAB), n_positions=WIDTH, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = get_peft_model(GPT2LMHeadModel(config), lora, adapter_name="timetable")
    model = accelerator.prepare(model)
    train(accelerator, model, "timetable", loader("timetable", 1), FIRST_STAGE, 0)
    model.add_adapter("storm", lora)
    train(accelerator, model, "storm", loader("storm", 2), SECOND_STAGE, FIRST_STAGE, weight=0.1, against="timetable")
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


main()
