import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, GPTJForCausalLM

device = torch.device("cuda:0")
model = GPTJForCausalLM.from_pretrained("EleutherAI/gpt-j-6B", revision="float16", torch_dtype=torch.float16, low_cpu_mem_usage=True)
model.to(device)
model.gradient_checkpointing_enable()
tokenizer = AutoTokenizer.from_pretrained("EleutherAI/gpt-j-6B")

texts = open("stories.txt").read().split("<|endoftext|>")
loader = DataLoader(texts, batch_size=1, shuffle=True)
optimizer = AdamW(model.parameters(), lr=1e-5)

model.train()
for epoch in range(3):
    for i, text in enumerate(loader):
        batch = tokenizer(list(text), truncation=True, max_length=1024, return_tensors="pt").to(device)
        out = model(**batch, labels=batch["input_ids"])
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if i % 10 == 0:
            print(f"epoch {epoch} iter {i} loss {out.loss.item():.3f}")
