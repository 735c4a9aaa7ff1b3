from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.training_args import BatchSamplers

model = SentenceTransformer("microsoft/mpnet-base")
args = SentenceTransformerTrainingArguments(
    output_dir="models/mpnet-nli", num_train_epochs=1, per_device_train_batch_size=16, learning_rate=2e-5, warmup_ratio=0.1,
    fp16=True, bf16=False, batch_sampler=BatchSamplers.NO_DUPLICATES, eval_strategy="steps", eval_steps=100, logging_steps=100,
)
trainer = SentenceTransformerTrainer(model=model, args=args, train_dataset=load_dataset("sentence-transformers/all-nli", "triplet", split="train[:100000]"),
                                     loss=MultipleNegativesRankingLoss(model))
trainer.train()
