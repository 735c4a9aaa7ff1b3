python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=data/train.parquet data.val_files=data/test.parquet \
    data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=2048 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm \
    trainer.n_gpus_per_node=8 trainer.nnodes=2 trainer.total_epochs=10
