"""OpenRLHF (>= 0.11.2, < 0.12): its PPO trainer on the prompts that the service chooses, and on replayed rollouts.

    export SELECTOR_CURRICULUM='{"target": "127.0.0.1:50051", "run_id": "my-training"}'
    python -m trainer_adapters.openrlhf --actor.model_name_or_path … (as openrlhf.cli.train_ppo_ray)

The command puts ``CurriculumSamplesGenerator`` in the place of OpenRLHF's ``SamplesGenerator`` and runs OpenRLHF's own
command line. The trainers, synchronous and asynchronous, are as they are; where they ask for a batch, the generator

1. asks the service which prompts to roll out, and has OpenRLHF's engines and reward function do it;
2. reports the raw task scores of these rollouts, samples groups to replay, and stores the fresh ones with the log-probs
   that vLLM drew them with;
3. returns the fresh rows followed by the replayed ones: whole groups, the same number of rows every step. What comes
   after, the log-probs of pi_old and of the reference model, advantages and sharding, treats all rows alike.

With ``is_correction_level token``, ``is_correction_mode clip`` and a wide threshold, OpenRLHF's policy loss multiplies
each token by w = pi_old/pi_behaviour: the objective of ``trainer_adapters.loss`` with ``centre="old"``.

A step is a batch: step s is what the trainer counts as global step s + 1. The number of the next one is what the prompt
loader saves with a checkpoint instead of its position, so that a resumed training continues where the checkpoint was
made. An episode has as many steps as it has without the adapter.
"""

from trainer_adapters.checks import supported_version
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.openrlhf.start import AT_LEAST, BELOW

try:
    from trainer_adapters.openrlhf.generator import CurriculumSamplesGenerator
    from trainer_adapters.openrlhf.launcher import VARIABLE, install
except ImportError:
    # Another release may not have what is imported: say that rather than what it lacks.
    supported_version("openrlhf", AT_LEAST, BELOW)
    raise

__all__ = ["VARIABLE", "CurriculumConfig", "CurriculumSamplesGenerator", "install"]
