from datasets import load_dataset
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5ForConditionalGeneration

tok = AutoTokenizer.from_pretrained("google/flan-t5-xl")
model = T5ForConditionalGeneration.from_pretrained("google/flan-t5-xl")
ds = load_dataset("billsum")
ds = ds.map(lambda b: tok(["summarize: " + t for t in b["text"]], text_target=b["summary"], truncation=True, max_length=1024), batched=True)
args = Seq2SeqTrainingArguments("billsum", bf16=True, learning_rate=1e-4, per_device_train_batch_size=4, num_train_epochs=2,
                                predict_with_generate=True, gradient_checkpointing=True)
Seq2SeqTrainer(model=model, args=args, train_dataset=ds["train"], data_collator=DataCollatorForSeq2Seq(tok, model)).train()
