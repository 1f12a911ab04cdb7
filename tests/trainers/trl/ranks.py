"""One rank of a training on several, started by torchrun; writes what it saw.

python -m torch.distributed.run --nproc_per_node 2 tests/trainers/trl/ranks.py TARGET FOLDER NAME STEPS [CHECKPOINT]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.trainers.trl.recording import Compared
from tests.trainers.trl.tiny import GROUP_SIZE, FirstDigit, config, trainer


def main() -> None:
    """Trains, four groups per rank and step."""
    target, folder, name, steps, *checkpoint = sys.argv[1:]
    reward = FirstDigit()
    made = trainer(
        Path(folder),
        config(target),
        reward,
        Compared,
        per_device_train_batch_size=4 * GROUP_SIZE,
        max_steps=int(steps),
        save_strategy="steps",
        save_steps=3,
    )
    made.train(resume_from_checkpoint=checkpoint[0] if checkpoint else None)
    seen = {
        "batches": reward.batches,
        "replayed": [[[group.group_id, group.prompt_id, len(group)] for group in groups] for groups in made.replayed],
        "rows": [len(rows["completion_ids"]) for rows in made.trained],
        "items": [float(rows["num_items_in_batch"]) for rows in made.trained],
        "tokens": [float(rows["completion_mask"].sum()) for rows in made.trained],
        "differences": made.differences,
        "replayed_rows": made.replayed_rows,
        "log": [each for each in made.state.log_history if "curriculum/replayed_groups" in each],
    }
    Path(folder, f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(seen))
    # gloo's threads must be done with their tensors before the interpreter ends.
    made.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
