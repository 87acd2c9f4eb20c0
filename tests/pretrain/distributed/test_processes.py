"""Several real processes over loopback train as one does, stop together, and end when one of them dies."""

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from runs import ROOT, assert_same_leaves, command, ends, environment, launched, leaves, pair, train

from pretrain.checkpoints.restore import Checkpoints
from pretrain.distributed.heartbeat import TIMEOUT
from pretrain.distributed.shutdown import FAILED, FAULT, PREEMPTED

PROGRAM = """if True:
    import os, time
    from pretrain import cli
    from pretrain.distributed.shutdown import shutdown
    shutdown.listen()
    from pretrain.distributed import consensus, init
    from pretrain.errors import UserError
    init.start()
    INDEX = int(os.environ['LONGHAUL_PROCESS'])

    def work():
        {work}

    try:
        code = work() or 0
    except Exception as error:
        code, message = cli.exit_code_and_message(error)
        print(message, file=os.sys.stderr, flush=True)
    shutdown.end(code)
"""


def working(work):
    return pair(sys.executable, "-c", PROGRAM.format(work=work))


def launch(workdir, text, processes=2, **overrides):
    """The command line of the same run in several processes of one device each."""
    return launched(f"{workdir}-logs", *command(workdir, text, **overrides)[3:], processes=processes)


def finish(line, **more):
    env = environment() | more
    return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def wait_for_step(process, step=5):
    for line in process.stderr:
        if f"step {step}/" in line:
            break


def test_consensus():
    work = """
        def fail(error):
            if INDEX:
                raise error

        def message(function, *arguments):
            try:
                function(*arguments)
            except UserError as error:
                return str(error)

        assert consensus.allgather_json({'index': INDEX}) == [{'index': 0}, {'index': 1}]
        assert consensus.on_host0(lambda: INDEX) == 0
        assert message(consensus.assert_equal_on_hosts, {'same': 1}, 'Fix it.') is None
        difference = message(consensus.assert_equal_on_hosts, {'other': INDEX}, 'Fix it.')
        assert 'other is 0 in process 0 and 1 in process 1' in difference
        assert message(consensus.on_all_hosts, lambda: fail(UserError('no such file'))) == 'no such file'
        consensus.on_all_hosts(lambda: fail(OSError('broken')))"""
    results = ends(working(work))
    assert [code for code, _, _ in results] == [FAULT, FAILED], results
    assert all("broken" in err for _, _, err in results)


def test_signal_to_one_process_stops_all_at_the_same_turn():
    work = """shutdown.hold()
        print('ready', flush=True)
        turn = 0
        while not shutdown.reached():
            turn += 1
            time.sleep(0.001 if INDEX else 0.003)
            if turn % 100 == 0:
                consensus.barrier()
        print('stopped', turn, flush=True)
        return 75"""
    processes = working(work)
    for process in processes:
        while "ready" not in process.stdout.readline():
            pass
    time.sleep(0.5)
    processes[1].send_signal(signal.SIGINT)
    (code, out, err), (other, says, _) = ends(processes)
    assert (code, other) == (PREEMPTED, PREEMPTED), err
    assert out == says and "stopped" in out


def test_killed_process_ends_the_other():
    """At once, since process 0 hosts the coordination service; the loss of another waits for JAX's heartbeats."""
    processes = working("print('ready', flush=True); time.sleep(120)")
    for process in processes:
        while "ready" not in process.stdout.readline():
            pass
    processes[0].kill()
    assert ends(processes)[1][0] == FAULT


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_training_signal_to_one_process(tmp_path, text, number):
    workdir, options = tmp_path / "run", {"checkpoint__every": 4000, "evaluate__every": 0}
    processes = pair(*command(workdir, text, train__steps=4000, **options))
    wait_for_step(processes[0])
    processes[1].send_signal(number)
    began = time.monotonic()
    (code, _, err), (other, _, _) = ends(processes, timeout=120)
    if number == signal.SIGKILL:
        assert code == FAULT, err
        assert time.monotonic() - began < TIMEOUT + 20
        return
    assert (code, other) == (PREEMPTED, PREEMPTED), err
    (saved,) = Checkpoints(str(workdir)).steps()
    resumed = shutil.copytree(workdir, tmp_path / "again")
    done = train(resumed, text, train__steps=saved, **options)
    assert done.returncode == 0, done.stderr
    assert_same_leaves(leaves(workdir, saved), leaves(resumed, saved))


@pytest.mark.slow
def test_two_processes_equal_one(whole, tmp_path, text):
    """Two processes to update 12, one process with two devices from there; and the other way round."""
    final = {}
    for first in ("two", "one"):
        workdir = tmp_path / first
        options = {"schedule__decay_steps": 24, "evaluate__every": 4}
        start, resume = launch(workdir, text, train__steps=12, **options), command(workdir, text, **options)
        if first == "one":
            start, resume = command(workdir, text, train__steps=12, **options), launch(workdir, text, **options)
        for line in (start, resume):
            done = finish(line)
            assert done.returncode == 0, done.stderr
        final[first] = leaves(workdir)
        rows = (workdir / "metrics" / "train.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in rows] == ["step", *map(str, range(1, 25))]  # each row once
    for name, leaf in leaves(whole).items():
        for end in final.values():
            np.testing.assert_allclose(end[name], leaf, atol=1e-4, err_msg=name)  # sums in another order


@pytest.mark.slow
def test_layouts_change_between_starts(tmp_path, text):
    """4 processes, then 2, then 8, each with another mesh: the same batches and the same curve as one alone."""
    stages = [
        (4, 2, {"mesh__data": 1, "mesh__fsdp": 8}),
        (2, 2, {"mesh__data": 4}),
        (8, 1, {"mesh__data": 2, "mesh__tensor": 4}),
        (4, 1, {"mesh__data": 2, "mesh__fsdp": 2}),
    ]
    options = {"model__heads": 4, "schedule__decay_steps": 24, "evaluate__every": 0}
    alone = finish(command(tmp_path / "alone", text, **options))
    assert alone.returncode == 0, alone.stderr
    for stage, (processes, devices, mesh) in enumerate(stages):
        line = command(tmp_path / "run", text, train__steps=6 * (stage + 1), **options, **mesh)[3:]
        done = finish(launched(tmp_path / f"logs-{stage}", *line, processes=processes, devices=devices))
        assert done.returncode == 0, done.stdout + done.stderr
    one, other = leaves(tmp_path / "alone"), leaves(tmp_path / "run")
    for name in one:
        np.testing.assert_allclose(other[name], one[name], atol=1e-4, err_msg=name)  # sums in another order


@pytest.mark.slow
def test_all_processes_use_the_same_older_checkpoint(copy, tmp_path, text):
    workdir = copy(8)
    manifest = workdir / "checkpoints" / "8" / "state" / "manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    done = finish(launch(workdir, text, train__steps=5))
    assert done.returncode == 0, done.stdout
    assert "restored checkpoint 4" in done.stdout
    assert (workdir / "checkpoints" / "broken" / "8").is_dir()


@pytest.mark.slow
def test_named_evaluations_when_two_processes_resume(tmp_path, text):
    """From a checkpoint at which one is due: process 0 alone has the rows of metrics, and all must skip it alike."""
    recipe, workdir = tmp_path / "recipe.py", tmp_path / "run"
    recipe.write_text(
        "from configs import quickstart\n\n\n"
        "def get_config(variant=''):\n"
        "    config = quickstart.get_config('tiny')\n"
        "    config.evaluations = {'again': {'every': 4, 'batches': 1}}\n"
        "    return config\n"
    )
    options = {"train__steps": 8, "evaluate__every": 4, "checkpoint__every": 4, "train__patience": 60}
    line = launch(workdir, text, recipe=str(recipe), **options)
    done = finish(line)
    assert done.returncode == 0, done.stderr
    rows = (workdir / "metrics" / "again.csv").read_text()
    shutil.rmtree(workdir / "checkpoints" / "8")
    done = finish(line)
    assert done.returncode == 0, done.stderr
    assert (workdir / "metrics" / "again.csv").read_text() == rows


@pytest.mark.slow
def test_tasks_of_two_processes_equal_one(whole, tmp_path):
    """Likelihoods over four devices of two processes, and generated texts, which need all parameters in each."""
    pairs = [{"sentence_good": f"import {name}", "sentence_bad": f"{name} import", "UID": "a"} for name in "xyzw"]
    texts = [{"en": "def f", "de": "(x)"}, {"en": "import", "de": "os"}]
    for name, rows in (("pairs", pairs), ("texts", texts)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text(
        "from pretrain.scoring.zero_shot import Task\n"
        "own = Task(name='own', kind='generate', context='{en}', answer='de', metrics=('exact_match',), max_tokens=8)\n"
    )
    flags = ["--tasks=blimp,{0}/own.py:own", "--data=blimp:jsonl:{0}/pairs.jsonl", "--data=own:jsonl:{0}/texts.jsonl"]
    line = ["evaluate", f"--workdir={whole}", *(flag.format(tmp_path) for flag in flags)]
    found = []
    for processes, devices in ((1, 1), (2, 2)):
        predictions = tmp_path / f"{processes}.jsonl"
        arguments = [*line, f"--predictions={predictions}"]
        finish(launched(tmp_path / "logs", *arguments, processes=processes, devices=devices))
        found.append([json.loads(row) for row in predictions.read_text().splitlines()])
    for one, other in zip(*found, strict=True):
        assert one.get("prediction") == other.get("prediction")
        np.testing.assert_allclose(one.get("log_likelihoods", 0), other.get("log_likelihoods", 0), atol=1e-5)
