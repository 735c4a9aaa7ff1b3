import argparse
import numpy as np
import evaluate
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

p = argparse.ArgumentParser()
p.add_argument("--task", default="mrpc")
p.add_argument("--lr", type=float, default=2e-5)
p.add_argument("--bs", type=int, default=32)
p.add_argument("--seed", type=int, default=42)
a = p.parse_args()
set_seed(a.seed)
raw = load_dataset("glue", a.task)
tok = AutoTokenizer.from_pretrained("bert-base-uncased")
data = raw.map(lambda b: tok(b["sentence1"], b["sentence2"], truncation=True), batched=True)
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
metric = evaluate.load("glue", a.task)


def compute_metrics(pred):
    logits, labels = pred
    return metric.compute(predictions=np.argmax(logits, -1), references=labels)


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=f"out/{a.task}", learning_rate=a.lr, per_device_train_batch_size=a.bs, num_train_epochs=3,
        weight_decay=0.01, fp16=True, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
    ),
    train_dataset=data["train"], eval_dataset=data["validation"], data_collator=DataCollatorWithPadding(tok),
    compute_metrics=compute_metrics,
)
trainer.train()
