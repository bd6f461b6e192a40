"""Which rank of how many: given, of torch.distributed, of the environment, or the only one."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from packdata.ranks import resolve_rank


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_given_ranks_are_taken_and_nothing_is_the_only_rank():
    assert resolve_rank(1, 4) == (1, 4)
    assert resolve_rank(np.int64(1), np.uint8(4)) == (1, 4)
    assert resolve_rank() == (0, 1)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (-1, 2, "rank must be from 0 to 1 for world_size=2, got -1"),  # H9
        (2, 2, "rank must be from 0 to 1 for world_size=2, got 2"),  # H9
        (0, 0, "world_size must be at least 1, got 0"),  # H9
        (0, -3, "world_size must be at least 1, got -3"),
        (0, None, "give rank and world_size together or neither, got rank=0, world_size=None"),
        (None, 2, "give rank and world_size together or neither, got rank=None, world_size=2"),
        (0.0, 2, "rank must be an integer, got 0.0"),
        (0, "2", "world_size must be an integer, got '2'"),
        (True, 2, "rank must be an integer, got True"),
        (0, True, "world_size must be an integer, got True"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rank, world_size, message):
    with pytest.raises(ValueError, match=message):
        resolve_rank(rank, world_size)


def test_the_environment_is_asked(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="rank must be from 0 to 0 for world_size=1, got 2"):
        resolve_rank()
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert resolve_rank() == (2, 3)
    assert resolve_rank(0, 1) == (0, 1)
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="the environment has WORLD_SIZE=3 but no RANK"):
        resolve_rank()
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(ValueError, match="the environment's RANK must be an integer, got 'two'"):
        resolve_rank()


def test_a_process_group_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert resolve_rank() == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_samplers_load_no_torch():
    code = "import sys, packdata.samplers as s; list(s.PackBatchSampler([3, 4], 8)); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
