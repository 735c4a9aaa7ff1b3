import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

accelerator = Accelerator(mixed_precision="fp16")
tokenizer = AutoTokenizer.from_pretrained("google/mt5-small")
model = AutoModelForSeq2SeqLM.from_pretrained("google/mt5-small")
xsum = load_dataset("xsum", split="train[:5%]")
xsum = xsum.map(lambda b: tokenizer(b["document"], text_target=b["summary"], truncation=True, max_length=512), batched=True, remove_columns=xsum.column_names)
loader = DataLoader(xsum, batch_size=8, shuffle=True, collate_fn=DataCollatorForSeq2Seq(tokenizer, model))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(epoch, loss.item())
