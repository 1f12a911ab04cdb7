"""One Ray cluster and one rollout actor for all tests; stand-ins for what does not run without CUDA."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
_STANDINS = _HERE / "standins"
sys.path.insert(0, str(_STANDINS))
# For Ray's workers and for processes that a test starts.
os.environ["PYTHONPATH"] = os.pathsep.join([str(_STANDINS), str(_HERE.parents[2])])
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray on this machine; its GPUs are only names."""
    os.environ["HF_HOME"] = str(tmp_path_factory.mktemp("huggingface"))
    import ray

    from tests.trainers.openrlhf import tiny

    ray.init(num_cpus=8, num_gpus=4, include_dashboard=False, log_to_driver=True)
    # OpenRLHF installs a package named tests as well, which is what a worker would find.
    ray.cloudpickle.register_pickle_by_value(tiny)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def engine(cluster: None) -> Any:
    """OpenRLHF's real rollout actor, with its executor and the reward function, around the stand-in's engine."""
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

    return RolloutRayActor.options(num_cpus=0).remote(
        model="", num_gpus=0, remote_rm_url=[str(_HERE / "reward.py")], logprobs_mode="processed_logprobs"
    )
