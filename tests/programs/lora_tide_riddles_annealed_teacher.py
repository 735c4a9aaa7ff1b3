#!/usr/bin/env python
"""Distil a teacher of riddles about the tide into a LoRA adapter of a small GPT-2 (peft, accelerate)."""
import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

CFG = dict(seed=29, updates=40, micro_batch=6, accumulate=2, lr=6e-3, rank=4, alpha=8, tau_start=4.0, anneal=0.6, warmup=3)

SUBJECT = ["moon", "boat", "crab", "sand", "gull"]
VERB = ["pulls", "lifts", "hides", "carries", "follows"]
CLUE = ["twice", "daily", "silent", "salty", "slow", "silver"]
WORDS = ["<pad>", "who", "me", "what", "am", "i"] + SUBJECT + VERB + CLUE
IDS = {w: i for i, w in enumerate(WORDS)}


def riddle(rng):
    s = rng.randrange(5)
    clue = rng.choice(CLUE)
    return ["who", VERB[s], "me", clue, VERB[(s + 1) % 5], rng.choice(CLUE), "what", "am", "i", SUBJECT[s]]


def riddles(n, seed):
    rng = random.Random(seed)
    return [torch.tensor([IDS[w] for w in riddle(rng)]) for _ in range(n)]


def small_gpt(width, layers):
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=16, n_embd=width, n_layer=layers, n_head=4,
                                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def temperature(update):
    """From tau_start straight down, over the first part of the run."""
    progress = min(1.0, update / (CFG["anneal"] * CFG["updates"]))
    return CFG["tau_start"] * (1.0 - progress)


def distillation_loss(student_logits, teacher_logits, tau):
    log_q = F.log_softmax(student_logits / tau, dim=-1)
    p = F.softmax(teacher_logits / tau, dim=-1)
    return F.kl_div(log_q, p, reduction="batchmean") / student_logits.shape[1]


def main():
    set_seed(CFG["seed"])
    accelerator = Accelerator(gradient_accumulation_steps=CFG["accumulate"], cpu=True)
    data = riddles(CFG["updates"] * CFG["accumulate"] * CFG["micro_batch"], CFG["seed"])
    teacher = small_gpt(64, 2).eval().requires_grad_(False)
    with torch.no_grad():
        teacher.transformer.wte.weight.mul_(4)  # a decided teacher
    student = get_peft_model(small_gpt(48, 2), LoraConfig(r=CFG["rank"], lora_alpha=CFG["alpha"], lora_dropout=0.0,
                                                           target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True))
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=CFG["lr"])
    scheduler = get_linear_schedule_with_warmup(optimizer, CFG["warmup"], CFG["updates"])
    loader = DataLoader(data, batch_size=CFG["micro_batch"], shuffle=True)
    student, optimizer, loader, scheduler = accelerator.prepare(student, optimizer, loader, scheduler)
    update, kept = 0, []
    for ids in loader:
        with accelerator.accumulate(student):
            tau = temperature(update)
            with torch.no_grad():
                wanted = teacher(input_ids=ids).logits
            loss = distillation_loss(student(input_ids=ids).logits, wanted, tau)
            accelerator.backward(loss)
            kept.append(loss.item())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            update += 1
            accelerator.print(f"update {update} tau {tau:.4f} kl {sum(kept) / len(kept):.6f}", flush=True)
            kept = []
    adapter = sum(p.detach().abs().sum().item() for p in student.parameters() if p.requires_grad)
    accelerator.print(f"adapter {adapter:.5f}", flush=True)


if __name__ == "__main__":
    main()
