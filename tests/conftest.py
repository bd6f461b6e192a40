"""Shapes and dtypes are checked at run time, hypothesis has no deadlines, and torch keeps to one thread."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jaxtyping

# Compiled code (kernels, attention, drafting) is left out: a checking wrapper is a graph break.
CHECKED = ["layout", "ranks", "planning", "sources", "samplers", "batches", "losses", "checks", "report"]
jaxtyping.install_import_hook([f"packdata.{part}" for part in CHECKED], "beartype.beartype")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

for profile, examples in {"quick": 20, "default": 200, "thorough": 1000}.items():
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
