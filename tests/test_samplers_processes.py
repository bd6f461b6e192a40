"""Real processes: gloo ranks that train as one process does, and training loops that are killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from sampler_training import Topics

from packdata.samplers import PackBatchSampler

SCRIPT = Path(__file__).with_name("sampler_training.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def start(*arguments, **options):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, text=True, start_new_session=True, **options
    )


def test_two_ranks_train_as_one_process_does_on_the_same_batches(tmp_path):
    runs = [start(*TORCHRUN, SCRIPT, "train", tmp_path / "two"), start(SCRIPT, "train", tmp_path / "one")]
    assert [run.wait(timeout=300) for run in runs] == [0, 0]
    two, one = (torch.load(tmp_path / name) for name in ("two", "one"))
    assert two.pop("empty") == one.pop("empty") == 2  # an odd number of batches, in two epochs
    assert two.pop("batches") * 2 == one.pop("batches")
    for name, parameter in one.items():
        torch.testing.assert_close(two[name], parameter, rtol=0, atol=1e-6)
    assert not torch.equal(one["1.weight"], torch.nn.Linear(16, 256).weight)


@pytest.mark.parametrize("loader", ["plain", "stateful", "accelerate"])
def test_a_killed_loop_resumes_with_exactly_the_rest(tmp_path, loader):
    out = tmp_path / "saved.json"
    run = start(SCRIPT, "consume", out, "--loader", loader, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not out.exists() or len(json.loads(out.read_text())["had"]) < 4:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    before = len(json.loads(out.read_text())["had"])
    assert start(SCRIPT, "consume", out, "--loader", loader).wait(timeout=200) == 0
    topics = Topics()
    sampler = PackBatchSampler(topics.lengths, 512, seed=5)
    expected = [sum(int(topics.ids[document].sum()) for document in batch) for batch in sampler]
    assert 4 <= before < len(expected)
    assert json.loads(out.read_text())["had"] == expected
