"""Runs the launcher's command on a Ray cluster of its own, with the tests' policy in the place of DeepSpeed's."""

from __future__ import annotations

import os
import runpy

import ray
import tiny
from openrlhf.trainer.ray import ppo_actor

from trainer_adapters.openrlhf import VARIABLE

if __name__ == "__main__":
    # The cluster's processes do not get the settings with their environment.
    settings = os.environ.pop(VARIABLE)
    ray.init(address="local", num_cpus=8, num_gpus=4, include_dashboard=False)
    os.environ[VARIABLE] = settings
    ray.cloudpickle.register_pickle_by_value(tiny)
    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(tiny.Policy)
    runpy.run_module("trainer_adapters.openrlhf", run_name="__main__", alter_sys=True)
