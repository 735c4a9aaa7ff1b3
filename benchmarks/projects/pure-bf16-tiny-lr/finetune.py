"""Full-parameter fine-tuning of a 7B model on one 80 GB card, everything in bf16."""
import json
import random
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "Qwen/Qwen2.5-7B"
LR = 1e-6
EPOCHS = 2
MAX_LEN = 1024

tok = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16).cuda()
model.gradient_checkpointing_enable()
rows = [json.loads(line) for line in open("train.jsonl")]
random.shuffle(rows)


def collate(batch):
    enc = tok([r["text"] + tok.eos_token for r in batch], truncation=True, max_length=MAX_LEN, padding=True, return_tensors="pt")
    labels = enc["input_ids"].clone()
    labels[enc["attention_mask"] == 0] = -100
    enc["labels"] = labels
    return enc


loader = DataLoader(rows, batch_size=2, shuffle=True, collate_fn=collate)
opt = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
step = 0
for epoch in range(EPOCHS):
    for batch in loader:
        batch = {k: v.cuda() for k, v in batch.items()}
        loss = model(**batch).loss / 8
        loss.backward()
        step += 1
        if step % 8 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            print(f"step {step} loss {loss.item() * 8:.4f}")
model.save_pretrained("out")
