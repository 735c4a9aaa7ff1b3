from datasets import load_dataset
from transformers import Adafactor, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5ForConditionalGeneration

model = T5ForConditionalGeneration.from_pretrained("t5-base")
tok = AutoTokenizer.from_pretrained("t5-base")
optimizer = Adafactor(model.parameters(), scale_parameter=False, relative_step=False, warmup_init=False, lr=1e-3)
ds = load_dataset("wmt16", "ro-en", split="train[:2%]").map(lambda r: tok("translate: " + r["translation"]["en"], text_target=r["translation"]["ro"], truncation=True))
args = Seq2SeqTrainingArguments("t5-ro", per_device_train_batch_size=16, num_train_epochs=1, lr_scheduler_type="constant", logging_steps=50)
Seq2SeqTrainer(model=model, args=args, train_dataset=ds, data_collator=DataCollatorForSeq2Seq(tok, model), optimizers=(optimizer, None)).train()
