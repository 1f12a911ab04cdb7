"""The custom loop on several processes with accelerate, and with a service that may be away for a while.

    selector serve --listen 127.0.0.1:50051 --encoder none
    torchrun --nproc_per_node 2 examples/accelerate_loop.py --target 127.0.0.1:50051

The second in an environment with torch, accelerate and this package. Task, policy and batches are those of
``custom_loop.py`` beside this file. What differs: process 0 asks the service and tells the others (``on_main``), each
trains on its share of whole groups (``share``), and ``Curriculum`` goes on with uniform prompts when the service has
not answered for two minutes (``timeout_s``), and reports later.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from custom_loop import SAMPLING, Policy, accuracy, make_prompts, pad_and_join, roll_out

from trainer_adapters.config import CurriculumConfig
from trainer_adapters.curriculum import Curriculum
from trainer_adapters.loss import grpo_replay_loss
from trainer_adapters.processes import on_main, share
from trainer_adapters.prompt_pool import PromptPool

GROUP_SIZE = 8


def train(config: CurriculumConfig, steps: int, batch_size: int, seed: int) -> None:
    """Trains a new policy; ``batch_size`` groups a step over all processes."""
    accelerator = Accelerator(cpu=True)
    if batch_size % accelerator.num_processes:
        raise SystemExit(
            f"--batch-size: expected a multiple of {accelerator.num_processes} processes, got {batch_size}"
        )
    accelerator.print(f"{accelerator.num_processes} processes")
    prompts, held_out = make_prompts(800, seed), make_prompts(400, seed + 1)
    torch.manual_seed(seed)
    plain = Policy()
    policy, optimiser = accelerator.prepare(plain, torch.optim.Adam(plain.parameters(), lr=3e-3))
    # Rollouts of the processes must differ.
    torch.manual_seed(seed * accelerator.num_processes + accelerator.process_index)

    # The prompts are their own ids here; PromptPool.from_texts names prompts by their content.
    pool = PromptPool(tuple(prompts), tuple(prompts))
    service = Curriculum(config, pool, config.run_config(GROUP_SIZE, seed, SAMPLING))
    # The step of a checkpoint instead of 0 resumes from it.
    on_main(service.start, 0)
    for step in range(steps):
        plan = on_main(service.plan, step, batch_size, parts=accelerator.num_processes)
        mine = share(plan.prompt_ids)
        fresh = roll_out(plain, mine, [GROUP_SIZE] * len(mine), step)
        on_main(service.deliver, step, gather_object(fresh))

        batch = pad_and_join(fresh, share(plan.replayed))
        with torch.no_grad():
            old = plain(batch.prompts, batch.responses)[1]
        loss = grpo_replay_loss(
            policy(batch.prompts, batch.responses)[1],
            old,
            batch.behavior,
            batch.advantages,
            batch.mask,
            counted_rows=batch.replayed,
        )
        optimiser.zero_grad()
        accelerator.backward(loss.loss)
        accelerator.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        # Of this process's rows alone, which tell enough.
        on_main(
            service.report_training,
            step,
            effective_sample_size=loss.effective_sample_size if plan.replayed else None,
            max_importance_weight=loss.max_weight if plan.replayed else None,
            clip_fraction=loss.clip_fraction,
            updates=1,
        )
        if step % 10 == 0 or step == steps - 1:
            accelerator.print(
                f"step {step:4d}  held-out accuracy {accuracy(plain, held_out):.2f}"
                f"  fresh {len(plan.prompt_ids):2d}  replayed {len(plan.replayed):2d}"
                f"  available {service.figures()['available']:.0f}"
            )
    if accelerator.is_main_process:
        service.close()
    accelerator.wait_for_everyone()
    accelerator.end_training()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="GRPO on a toy task with selection and replay, on several processes.")
    parser.add_argument("--target", default="127.0.0.1:50051", help="host:port of the service")
    parser.add_argument("--run-id", default="accelerate-loop", help="the run; begun anew if it exists")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=32, help="groups trained on per step, over all processes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = CurriculumConfig(arguments.target, arguments.run_id)
    train(config, arguments.steps, arguments.batch_size, arguments.seed)


if __name__ == "__main__":
    main()
