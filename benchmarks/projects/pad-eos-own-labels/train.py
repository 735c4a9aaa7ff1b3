import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

tok = AutoTokenizer.from_pretrained("gpt2")
tok.pad_token = tok.eos_token
model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()


def collate(rows):
    enc = tok([r + tok.eos_token for r in rows], padding=True, truncation=True, max_length=512, return_tensors="pt")
    enc["labels"] = enc["input_ids"].masked_fill(enc["attention_mask"] == 0, -100)
    return enc


loader = DataLoader(open("poems.txt").read().split("\n\n"), batch_size=8, shuffle=True, collate_fn=collate)
opt = torch.optim.AdamW(model.parameters(), lr=3e-5)
sched = get_cosine_schedule_with_warmup(opt, 100, 5 * len(loader))
scaler = torch.amp.GradScaler("cuda")
for epoch in range(5):
    for batch in loader:
        batch = batch.to("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(**batch).loss
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
