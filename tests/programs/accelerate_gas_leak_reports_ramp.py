import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers.models.bert import BertConfig, BertForSequenceClassification
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()

VOCAB, LENGTH, URGENCY = 60, 10, 3
STEPS, WARMUP, PEAK = 40, 12, 4e-3


def leak_reports(n):
    """Calls to the gas emergency line as word ids; words 10..19 mean little, 20..29 some, 30..39 great danger."""
    g = torch.Generator().manual_seed(31)
    urgency = torch.randint(0, URGENCY, (n,), generator=g)
    ids = torch.randint(40, VOCAB, (n, LENGTH), generator=g)
    for k in range(3):
        ids[:, 1 + 3 * k] = 10 + 10 * urgency + torch.randint(0, 10, (n,), generator=g)
    ids[:, 0] = 1
    return TensorDataset(ids, urgency)


def rate_at(step):
    """Starts small and grows by a constant factor, so that the peak is reached after the warm-up."""
    growth = 100 ** (1 / WARMUP)
    return growth ** (step - WARMUP)


def main():
    torch.manual_seed(31)
    accelerator = Accelerator(cpu=True)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=16, num_labels=URGENCY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
    loader = DataLoader(leak_reports(24 * STEPS), batch_size=24, shuffle=False)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, (ids, urgency) in enumerate(loader, 1):
        out = model(input_ids=ids, labels=urgency)
        accelerator.backward(out.loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        hits = (out.logits.argmax(-1) == urgency).float().mean()
        print(f"step {step:2d} loss {out.loss.item():.4f} hits {hits.item():.2f}")
    total = sum(p.detach().double().square().sum().item() for p in model.parameters())
    print(f"sum of squared weights {total:.4f}")


if __name__ == "__main__":
    main()
