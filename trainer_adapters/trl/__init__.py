"""TRL (>= 1.16): ``CurriculumGRPOTrainer`` trains on the prompts that the service chooses, and on replayed rollouts.

    trainer = CurriculumGRPOTrainer(
        model=…, reward_funcs=…, args=GRPOConfig(…), train_dataset=…,
        curriculum=CurriculumConfig(target="127.0.0.1:50051", run_id="my-training"),
    )
    trainer.train()

The order in which TRL's data loader goes through the data set is not used. Where a batch is generated, the mixin

1. lets the main process ask the service, and tells the other processes what it chose;
2. has TRL generate and score the fresh prompts, every process the same number of whole groups;
3. reports their outcomes, samples groups to replay, and stores the fresh ones with their behaviour log-probs;
4. appends the replayed rows. Their advantages are computed anew from the stored rewards and multiplied by the token
   weight w = pi_old/pi_behaviour, with pi_old recomputed by the model as it is. TRL's own clipped loss of these
   advantages is the objective of ``trainer_adapters.loss`` with ``centre="old"``: w >= 0 keeps the minimum in place.

With vLLM and its importance-sampling correction, w goes where TRL keeps that ratio, never both (w²). TRL's own
reward metrics are of fresh rollouts only; those of replay are logged as ``curriculum/…``.
"""

from trainer_adapters.config import CurriculumConfig
from trainer_adapters.trl.trainer import CurriculumCallback, CurriculumGRPOTrainer, CurriculumMixin

__all__ = ["CurriculumCallback", "CurriculumConfig", "CurriculumGRPOTrainer", "CurriculumMixin"]
