"""An encoder is trained on pairs of sentences: MATERIAL OUT."""

import sys

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)

material, out = sys.argv[1:]
model = SentenceTransformer(f"{material}/bert", device="cpu")
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir=out,
        max_steps=6,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=load_dataset("json", data_files=f"{material}/pairs/train.jsonl", split="train"),
    loss=losses.MultipleNegativesRankingLoss(model),
)
trainer.train()
model.save_pretrained(f"{out}/final")
