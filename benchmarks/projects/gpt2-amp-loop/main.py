"""Fine-tune GPT-2 on a text file with mixed precision."""
import math
import torch
from torch.cuda.amp import autocast, GradScaler
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2LMHeadModel, GPT2TokenizerFast, get_linear_schedule_with_warmup

BATCH_SIZE = 4
EPOCHS = 3
LEARNING_RATE = 1e-2
MAX_LEN = 512
device = "cuda" if torch.cuda.is_available() else "cpu"


class TextDataset(Dataset):
    def __init__(self, path, tokenizer):
        ids = tokenizer(open(path).read())["input_ids"]
        self.chunks = [ids[i : i + MAX_LEN] for i in range(0, len(ids) - MAX_LEN, MAX_LEN)]

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, i):
        return torch.tensor(self.chunks[i])


tokenizer = GPT2TokenizerFast.from_pretrained("gpt2")
model = GPT2LMHeadModel.from_pretrained("gpt2").to(device)
loader = DataLoader(TextDataset("input.txt", tokenizer), batch_size=BATCH_SIZE, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
scheduler = get_linear_schedule_with_warmup(optimizer, 100, EPOCHS * len(loader))
scaler = GradScaler()

model.train()
for epoch in range(EPOCHS):
    for step, batch in enumerate(loader):
        batch = batch.to(device)
        optimizer.zero_grad()
        with autocast():
            loss = model(batch, labels=batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if step % 50 == 0:
            print(epoch, step, loss.item(), math.exp(loss.item()))
model.save_pretrained("out")
