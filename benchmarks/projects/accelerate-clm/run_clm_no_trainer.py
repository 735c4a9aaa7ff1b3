import argparse
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator, get_scheduler

parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", type=str)
parser.add_argument("--learning_rate", type=float, default=5e-5)
parser.add_argument("--weight_decay", type=float, default=0.0)
parser.add_argument("--num_warmup_steps", type=int, default=100)
parser.add_argument("--max_train_steps", type=int, default=2000)
args = parser.parse_args()
accelerator = Accelerator(gradient_accumulation_steps=2)
tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
data = load_dataset("wikitext", "wikitext-103-raw-v1", split="train")
data = data.map(lambda r: tokenizer(r["text"], truncation=True, max_length=512), remove_columns=["text"])
no_decay = ["bias", "layer_norm.weight"]
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": args.weight_decay},
    {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
loader = DataLoader(data, shuffle=True, collate_fn=default_data_collator, batch_size=8)
sched = get_scheduler("cosine", optimizer, args.num_warmup_steps, args.max_train_steps)
model, optimizer, loader, sched = accelerator.prepare(model, optimizer, loader, sched)
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sched.step()
        optimizer.zero_grad()
    if step >= args.max_train_steps:
        break
