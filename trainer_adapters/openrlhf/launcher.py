"""Puts the generator into OpenRLHF's trainers, and runs OpenRLHF's command line.

OpenRLHF's parser takes no flags but its own. The adapter's settings are read from an environment variable in the
launching process, and travel with the class into the Ray actors that use them.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import ray
import ray.cloudpickle
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from trainer_adapters.checks import AdapterError, accepts, supported_version
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.openrlhf.generator import CurriculumSamplesGenerator
from trainer_adapters.openrlhf.maker import CurriculumExperienceMaker
from trainer_adapters.openrlhf.start import AT_LEAST, BELOW

VARIABLE = "SELECTOR_CURRICULUM"
COMMAND_LINE = "openrlhf.cli.train_ppo_ray"
_HOOKS = {
    "__init__": ["strategy", "prompts_dataloader", "eval_dataloader", "tokenizer", "vllm_engines"],
    "generate_samples": ["generate_kwargs"],
    "_dispatch_prompts_to_vllm": ["prompts", "labels", "images", "generate_kwargs"],
    "_process_response_into_experience": ["response", "generate_kwargs"],
}


def install(config: CurriculumConfig) -> None:
    """Lets both of OpenRLHF's trainers draw from the curriculum, in this process and in the Ray actors it starts.

    To be called before the first trainer is made. The settings travel with the class; the package must be importable
    where the actors run.

    Raises:
        AdapterError: this release of OpenRLHF is not supported.
    """
    supported_version("openrlhf", AT_LEAST, BELOW)
    for name, parameters in _HOOKS.items():
        accepts(getattr(SamplesGenerator, name), f"SamplesGenerator.{name}", parameters)
    # Not before: engine processes must not import DeepSpeed.
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async

    accepts(
        ppo_trainer.RemoteExperienceMaker.make_experience, "RemoteExperienceMaker.make_experience", ["samples_list"]
    )
    for module in (ppo_trainer, ppo_trainer_async):
        module.SamplesGenerator = partial(CurriculumSamplesGenerator, curriculum=config)
    if config.replay:
        ppo_trainer.RemoteExperienceMaker = partial(CurriculumExperienceMaker, curriculum=config)
    # Both trainers derive from a class that Ray would otherwise have its actors import, without what is set here.
    ray.cloudpickle.register_pickle_by_value(ppo_trainer)


def configured(environment: Mapping[str, str]) -> CurriculumConfig:
    """The settings that the variable SELECTOR_CURRICULUM holds: a JSON object, or the path of a file with one.

    Raises:
        AdapterError: it is missing, cannot be read, or has unknown or missing names.
    """
    value = environment.get(VARIABLE, "").strip()
    if not value:
        raise AdapterError(f'{VARIABLE}: expected {{"target": "host:port", "run_id": "…"}} or a file with it, got none')
    try:
        settings = json.loads(value if value.startswith("{") else Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{VARIABLE}: expected a JSON object or the path of a file with one: {error}") from error
    if not isinstance(settings, dict):
        raise AdapterError(f"{VARIABLE}: expected a JSON object, got {settings!r}")
    return CurriculumConfig.from_mapping(settings)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """OpenRLHF's PPO command line with the adapter; ``arguments`` are all its own."""
    if not {"-h", "--help"} & set(arguments):
        install(configured(environment))
    sys.argv = [COMMAND_LINE, *arguments]
    runpy.run_module(COMMAND_LINE, run_name="__main__", alter_sys=True)
