"""Preference tuning without a reference model (SimPO) of a LoRA adapter; accelerate loop, byte-level toy text."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

PAIRS = [
    ("boil rice", "rinse, then 12 min", "just boil it"),
    ("fry egg", "low heat, butter", "high heat"),
    ("proof dough", "one hour, covered", "no idea"),
    ("poach pear", "wine and clove", "use the oven"),
    ("toast nuts", "dry pan, stir", "burn them"),
    ("clean leek", "halve and soak", "do not"),
    ("temper milk", "add slowly, whisk", "pour it all"),
    ("rest steak", "", "eat at once"),
    ("make roux", "flour into fat", "flour and water"),
    ("steam fish", "8 min, ginger", "fry it"),
    ("whip cream", "cold bowl", "warm bowl"),
    ("peel garlic", "crush, then slip", "with teeth"),
]


def encode(prompt, answer):
    p, a = list(prompt.encode() + b":"), list(answer.encode())
    return torch.tensor(p + a), torch.tensor([0] * len(p) + [1] * len(a))


def collate(batch):
    rows = [encode(p, c) for p, c, _ in batch] + [encode(p, r) for p, _, r in batch]
    ids = torch.nn.utils.rnn.pad_sequence([i for i, _ in rows], batch_first=True)
    answer = torch.nn.utils.rnn.pad_sequence([m for _, m in rows], batch_first=True)
    attention = torch.nn.utils.rnn.pad_sequence([torch.ones_like(i) for i, _ in rows], batch_first=True)
    return {"ids": ids, "answer": answer, "attention": attention}


def average_logp(model, batch):
    logits = model(input_ids=batch["ids"], attention_mask=batch["attention"]).logits[:, :-1]
    logp = logits.log_softmax(-1).gather(-1, batch["ids"][:, 1:, None]).squeeze(-1)
    keep = batch["answer"][:, 1:]
    return (logp * keep).sum(-1) / keep.sum(-1)


def train(beta=2.0, gamma=0.5, epochs=3):
    set_seed(40)
    accelerator = Accelerator(cpu=True)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                        num_attention_heads=2, max_position_embeddings=64))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    loader = DataLoader(PAIRS, batch_size=2, shuffle=True, collate_fn=collate)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, epochs * len(loader))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for epoch in range(epochs):
        for batch in loader:
            chosen, rejected = average_logp(model, batch).chunk(2)
            loss = -F.logsigmoid(beta * (chosen - rejected) - gamma).mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            accelerator.print(f"[{epoch}] loss: {loss.item():.9f}")
    accelerator.print(torch.stack([p.detach().sum() for p in trainable]).sum().item())


train()
