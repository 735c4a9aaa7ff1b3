from transformers import Trainer, TrainingArguments, Wav2Vec2ForCTC, Wav2Vec2Processor
from data import DataCollatorCTCWithPadding, load_common_voice

processor = Wav2Vec2Processor.from_pretrained("./processor")
model = Wav2Vec2ForCTC.from_pretrained(
    "facebook/wav2vec2-large-xlsr-53", attention_dropout=0.1, hidden_dropout=0.1, mask_time_prob=0.05, layerdrop=0.1,
    ctc_loss_reduction="mean", ctc_zero_infinity=True, pad_token_id=processor.tokenizer.pad_token_id, vocab_size=len(processor.tokenizer),
)
model.freeze_feature_encoder()
args = TrainingArguments(output_dir="xlsr", group_by_length=True, per_device_train_batch_size=16, gradient_accumulation_steps=2,
                         eval_strategy="steps", num_train_epochs=30, fp16=True, save_steps=400, learning_rate=3e-4, warmup_steps=500)
Trainer(model=model, data_collator=DataCollatorCTCWithPadding(processor), args=args, train_dataset=load_common_voice("train")).train()
