from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments,
)

checkpoint = "Helsinki-NLP/opus-mt-en-fr"
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
books = load_dataset("opus_books", "en-fr")["train"].train_test_split(test_size=0.2)


def preprocess(examples):
    inputs = [ex["en"] for ex in examples["translation"]]
    targets = [ex["fr"] for ex in examples["translation"]]
    return tokenizer(inputs, text_target=targets, max_length=128, truncation=True)


tokenized = books.map(preprocess, batched=True)
args = Seq2SeqTrainingArguments(
    output_dir="opus-en-fr",
    eval_strategy="epoch",
    learning_rate=2e-5,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=64,
    weight_decay=0.01,
    num_train_epochs=3,
    label_smoothing_factor=0.1,
    fp16=True,
    fp16_full_eval=True,
    predict_with_generate=False,
)
trainer = Seq2SeqTrainer(
    model=model, args=args, train_dataset=tokenized["train"], eval_dataset=tokenized["test"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=checkpoint),
)
trainer.train()
