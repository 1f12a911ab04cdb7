"""Runs the launcher's command on a Ray cluster that is there, with the tests' policy in the place of DeepSpeed's."""

from __future__ import annotations

import runpy

import ray
import tiny
from openrlhf.trainer.ray import ppo_actor

if __name__ == "__main__":
    ray.init(address="auto")
    ray.cloudpickle.register_pickle_by_value(tiny)
    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(tiny.Policy)
    runpy.run_module("trainer_adapters.openrlhf", run_name="__main__", alter_sys=True)
