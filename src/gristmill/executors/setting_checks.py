"""Validation of the settings of executors and clusters, when the executor is constructed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gristmill.core.errors import PlanError, did_you_mean

SettingRule = tuple[Callable[[Any], bool], str]
"""A check of a value, and a description of valid values for the message."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


POSITIVE: SettingRule = (lambda value: _is_number(value) and value > 0, "a number greater than 0")
NOT_NEGATIVE: SettingRule = (lambda value: _is_number(value) and value >= 0, "a number, 0 or more")
FRACTION: SettingRule = (lambda value: _is_number(value) and 0 < value <= 1, "a share: more than 0, at most 1")
COUNT: SettingRule = (lambda value: _is_whole(value) and value >= 0, "a whole number, 0 or more")
FLAG: SettingRule = (lambda value: isinstance(value, bool), "True or False")
MAPPING: SettingRule = (lambda value: isinstance(value, Mapping), "a mapping of names to values")
PATH: SettingRule = (
    lambda value: isinstance(value, str | os.PathLike) and bool(os.fspath(value)),
    "text, and not empty",
)
PORT: SettingRule = (lambda value: _is_whole(value) and 0 < value < 2**16, "a port: a whole number from 1 to 65535")
GPUS: SettingRule = (
    lambda value: COUNT[0](value) or (isinstance(value, list | tuple) and all(map(POSITIVE[0], value))),
    "how many GPUs there are, or a list of the memory in GB of each",
)

CONFIG_RULES: dict[str, SettingRule] = {
    "gpu_memory_gb": POSITIVE,
    "runtime_env": MAPPING,
    "ray_init": MAPPING,
    "request_cpus": COUNT,
    "reserved_cpus": NOT_NEGATIVE,
    "reserved_gpus": NOT_NEGATIVE,
    "resource_wait_timeout_s": NOT_NEGATIVE,
    "resource_wait_interval_s": POSITIVE,
    "logging_interval": POSITIVE,
    "ignore_failures": FLAG,
    "cpu_allocation_percentage": FRACTION,
    "autoscale_interval_s": POSITIVE,
}

UNSUPPORTED_SETTINGS: dict[str, str] = {
    "max_workers_per_stage": "Set the number of workers of a stage: stage.with_(num_workers=4)",
    "logging_interval": "Use progress_interval",
    "ignore_failures": "Failing records are quarantined anyway; Pipeline.run(max_errors=None) allows any number",
    "cpu_allocation_percentage": "Use reserved_cpus, the number of cores to keep free",
    "autoscale_interval_s": "Leave it out: pools are resized continuously",
}
"""What to use instead of settings that only other executors have."""

_RUNTIME_ENV_KEYS = (
    *("pip", "uv", "py_modules", "working_dir", "env_vars", "conda", "excludes", "py_executable", "config"),
    *("container", "image_uri", "java_jars", "worker_process_setup_hook"),
)


def check_setting(owner: str, name: str, value: Any, rule: SettingRule) -> None:
    if not rule[0](value):
        raise PlanError(f"{owner}({name}={value!r}): must be {rule[1]}")


def check_config(owner: str, config: Any, known: Iterable[str], unsupported: Mapping[str, str]) -> dict[str, Any]:
    """The settings without those that are None, after checking them."""
    check_setting(owner, "config", config, MAPPING)
    given = {key: value for key, value in config.items() if value is not None}
    for key, value in given.items():
        if key not in known:
            way_out = unsupported.get(key) or f"{did_you_mean(str(key), known)} Settings: {', '.join(known)}".lstrip()
            raise PlanError(f"{owner} has no setting {key!r}. {way_out}")
        if key in CONFIG_RULES:
            check_setting(owner, key, value, CONFIG_RULES[key])
    check_runtime_env(owner, given.get("runtime_env") or {})
    return given


def check_runtime_env(owner: str, env: Any) -> None:
    """Refuse a `runtime_env` that Ray would ignore, in whole or in part."""
    check_setting(owner, "runtime_env", env, MAPPING)
    for key in env:
        if key not in _RUNTIME_ENV_KEYS and not str(key).startswith("_"):
            raise PlanError(
                f"{owner}: runtime_env has no key {key!r}.{did_you_mean(str(key), _RUNTIME_ENV_KEYS)} "
                f"Keys: {', '.join(_RUNTIME_ENV_KEYS)}"
            )
    variables = env.get("env_vars") or {}
    if not isinstance(variables, Mapping) or not all(
        isinstance(text, str) for pair in variables.items() for text in pair
    ):
        raise PlanError(f"{owner}: env_vars of runtime_env must map text to text, not {variables!r}")
