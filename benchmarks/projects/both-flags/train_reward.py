import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer

model_name = "Qwen/Qwen2.5-0.5B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(model_name)
model = AutoModelForSequenceClassification.from_pretrained(model_name, num_labels=1)
model.config.pad_token_id = tokenizer.pad_token_id
dataset = load_dataset("trl-lib/ultrafeedback_binarized")
training_args = RewardConfig(
    output_dir="reward",
    per_device_train_batch_size=8,
    num_train_epochs=1,
    gradient_checkpointing=True,
    learning_rate=1.0e-5,
    logging_steps=25,
    fp16=True,
    bf16=torch.cuda.is_available(),
    eval_strategy="steps",
    eval_steps=50,
    max_length=2048,
)
RewardTrainer(
    model=model, processing_class=tokenizer, args=training_args, train_dataset=dataset["train"], eval_dataset=dataset["test"]
).train()
