from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tok = AutoTokenizer.from_pretrained("microsoft/deberta-v3-base")
model = AutoModelForSequenceClassification.from_pretrained("microsoft/deberta-v3-base", num_labels=5)
ds = load_dataset("yelp_review_full")
ds = ds.map(lambda b: tok(b["text"], truncation=True, max_length=256), batched=True)
args = TrainingArguments(
    output_dir="deberta-yelp",
    learning_rate=2e-5,
    max_steps=300,
    warmup_steps=1000,
    per_device_train_batch_size=16,
    bf16=True,
    logging_steps=10,
)
Trainer(model=model, args=args, train_dataset=ds["train"].select(range(8000)), processing_class=tok).train()
