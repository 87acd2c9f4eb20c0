"""Two real processes, joined as a scheduler would start them: they stop together, and none waits for one that ended."""

import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from runs import ROOT, assert_same_leaves, command, ends, environment, leaves, pair

from pretrain.cli import main
from pretrain.distributed import heartbeat
from pretrain.distributed.shutdown import FAILED, FAULT, MISTAKE, PREEMPTED

PROGRAM = """if True:
    import os, time
    from pretrain.distributed import streams
    from pretrain.distributed.shutdown import leaving
    streams.settle()
    leaving.listen()
    from pretrain import main
    from pretrain.distributed import host
    from pretrain.errors import UserError
    host.start()
    INDEX = int(os.environ['LONGHAUL_PROCESS'])

    def work():
        {work}

    try:
        leaving.end(work() or 0)
    except Exception as error:
        leaving.end(leaving.failed(*main.verdict(error)))
"""
WAIT = "print('ready', flush=True); time.sleep(120)"


def working(work):
    return pair(sys.executable, "-c", PROGRAM.format(work=work))


def ready(processes, word="ready"):
    for process in processes:
        for line in process.stdout:
            if word in line:
                break


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_mistake_of_one_ends_both_with_its_code_and_words(culprit):
    processes = working(f"if INDEX == {culprit}: raise UserError('no such file')\n        {WAIT}")
    for code, _, err in ends(processes, timeout=30):
        assert code == MISTAKE
        assert err.splitlines()[-1].endswith("no such file")
        assert "Traceback" not in err


def test_a_bug_in_one_shows_its_traceback_once():
    (code, _, err), (other, _, cause) = ends(working(f"if INDEX: 1 / 0\n        {WAIT}"), timeout=30)
    assert (code, other) == (FAILED, FAILED)
    assert err.splitlines()[-1] == "pretrain: process 1: ZeroDivisionError: division by zero"
    assert "Traceback" not in err
    assert "Traceback" in cause


def test_what_breaks_after_another_has_failed_is_not_said():
    """Process 0 fails as soon as process 1 has told why it ends, as where a connection is lost."""
    work = """if INDEX:
            raise UserError('the reason')
        while not leaving.others._read('notice/left/'):
            time.sleep(0.001)
        raise OSError('connection lost')"""
    (code, _, err), (other, _, _) = ends(working(work), timeout=30)
    assert (code, other) == (MISTAKE, MISTAKE)
    assert err.splitlines() == ["pretrain: process 1: the reason"]


def test_processes_that_lose_touch_are_no_bug():
    work = """import jax
        raise jax.errors.JaxRuntimeError('UNAVAILABLE: Connection reset by peer')"""
    for code, _, err in ends(working(work), timeout=60):
        assert code == FAULT
        assert "have lost touch (UNAVAILABLE: Connection reset by peer); start the same command" in err
        assert "Traceback" not in err


def test_a_signal_to_one_ends_both_while_there_is_nothing_to_save():
    processes = working(WAIT)
    ready(processes)
    processes[1].send_signal(signal.SIGTERM)
    for code, _, err in ends(processes, timeout=30):
        assert code == PREEMPTED
        assert err.splitlines()[-1].endswith("nothing is lost; start the same command again")


def test_all_stop_at_the_same_turn():
    """However fast each one turns: process 1 has come three times as far when the signal comes, and waits."""
    turns = """leaving.hold()
        print('ready', flush=True)
        turn = 0
        while not leaving.reached():
            turn += 1
            time.sleep(0.001 if INDEX else 0.003)
        print('stopped', turn)
        return 75"""
    processes = working(turns)
    ready(processes)
    time.sleep(1)
    processes[0].send_signal(signal.SIGINT)
    (code, said, err), (other, says, _) = ends(processes)
    assert (code, other) == (PREEMPTED, PREEMPTED), err
    assert said == says and "stopped" in said


class Store:
    """What JAX's coordination service keeps, for processes that can be suspended: their calls then do not return."""

    def __init__(self):
        self.values, self.awake = {}, threading.Event()
        self.broken = {}  # how many calls more fail of those about a key that has a word
        self.awake.set()

    def _answer(self, key):
        self.awake.wait()
        for word, count in self.broken.items():
            if word in key and count:
                self.broken[word] -= 1
                raise RuntimeError("UNAVAILABLE: Connection reset by peer")

    def key_value_set(self, key, value, allow_overwrite):
        self._answer(key)
        self.values[key] = value

    def key_value_dir_get(self, folder):
        self._answer(folder)
        return [(key, value) for key, value in [*self.values.items()] if key.startswith(folder)]


@pytest.fixture
def watched(monkeypatch):
    """(store, what the processes said as they left, a function that starts the watch of process `index` of two)."""
    monkeypatch.setattr(heartbeat, "POLL", 0.01)
    monkeypatch.setattr(heartbeat, "SILENT", 0.5)
    store, said, started, over = Store(), [], [], threading.Event()

    class Leaver:
        asked, watchdog = False, None

        def leave(self, code, sentence):
            said.append((code, sentence))
            over.wait()  # it never comes back

    def start(index):
        started.append(heartbeat.Others(Leaver(), store, index, 2))
        return started[-1]

    yield store, said, start
    over.set()
    for process in started:
        process.stop()


def beats(store, seconds, first=0, index=1):
    """Shows that a process lives, for so long; returns what it would count on from."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        first += 1
        store.values[f"longhaul/alive/{index}"] = str(first)
        time.sleep(0.01)
    return first


def test_a_job_that_was_suspended_as_a_whole_goes_on(watched):
    """Process 0 wakes before process 1, whose silence it once took for its end."""
    store, said, start = watched
    start(0)
    count = beats(store, 0.2)
    store.awake.clear()
    time.sleep(0.8)
    store.awake.set()
    time.sleep(0.1)
    beats(store, 0.3, count)
    assert said == []
    until = time.monotonic() + 20
    while not said and time.monotonic() < until:  # one that has really ended is noticed all the same
        time.sleep(0.05)
    ((code, sentence),) = said
    assert code == FAULT and sentence.startswith("process 1 has ended without a word")


@pytest.mark.parametrize("broken", ["longhaul/", "notice/turn"])
def test_a_connection_that_breaks_for_a_moment_ends_no_watch(watched, broken):
    """A process that no longer listened, or was not heard, would wait for ever at the turn where all stop."""
    store, said, start = watched
    process = start(0)
    count = beats(store, 0.1)
    store.broken[broken] = 3
    process._leaving.asked = True
    beats(store, 0.5, count)
    assert store.broken[broken] == 0 and said == []
    store.values["longhaul/notice/turn/1"] = "1"
    assert store.values["longhaul/notice/turn/0"] == "1" and process.reached()


def test_who_leaves_is_heard_though_a_call_fails(watched, monkeypatch):
    monkeypatch.setattr(heartbeat, "PATIENCE", 1.0)
    store, said, start = watched
    process = start(1)
    process.stop()  # its watch has nothing to do with it
    store.broken |= {"notice/left/": 3, "alive/": 1}
    beating = threading.Thread(target=beats, args=(store, 0.5), kwargs={"index": 0})
    beating.start()
    process.ask_for_the_cause()
    beating.join()
    process.leave(2, "a mistake of the user")
    assert said == [] and store.values["longhaul/notice/left/1"] == "2 a mistake of the user"


def test_no_process_says_of_itself_that_it_ended_without_a_word(watched):
    store, said, start = watched
    store.key_value_set("longhaul/notice/left/0", f"{FAULT} process 1 {heartbeat.GONE}; start again", True)
    start(1)
    until = time.monotonic() + 20
    while not said and time.monotonic() < until:
        time.sleep(0.05)
    assert said == [(FAULT, "process 0: the run has ended: nothing was heard of process 1, this one, for too long")]


@pytest.mark.slow
def test_a_killed_process_is_noticed():
    processes = working(WAIT)
    ready(processes)
    processes[1].kill()
    began = time.monotonic()
    code, _, err = ends(processes)[0]
    assert code == FAULT
    assert "process 1 has ended without a word" in err.splitlines()[-1]
    assert time.monotonic() - began < 40


@pytest.mark.slow
def test_who_fails_while_process_0_does_not_answer_ends_soon():
    """Stopped, and not killed, it keeps its connections, and what is asked of it waits."""
    work = """print('ready', flush=True); time.sleep(3 if INDEX else 120)
        raise RuntimeError('the connection is lost')"""
    processes = working(work)
    ready(processes)
    processes[0].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        _, err = processes[1].communicate(timeout=60)
    finally:
        processes[0].kill()
        processes[0].communicate()
    assert processes[1].returncode == FAULT and time.monotonic() - began < 40
    assert "process 0 has ended without a word" in err.splitlines()[-1]


@pytest.mark.slow
def test_signals_to_one_of_two_at_random_moments(tmp_path, text):
    """While loading, preparing, compiling, training, saving, scoring: 75 from both, or 0 at the end."""
    workdir, rng = tmp_path / "run", random.Random(1)
    options = {"checkpoint__every": 1, "evaluate__batches": 3}
    began = time.monotonic()
    timed = ends(pair(*command(tmp_path / "timed", text, **options)), timeout=300)
    assert [code for code, _, _ in timed] == [0, 0], timed[0][2]
    life, codes = time.monotonic() - began, []
    for _ in range(6):
        processes = pair(*command(workdir, text, **options))
        time.sleep(1 + rng.random() * life)
        asked = [processes[rng.randrange(2)]] if rng.random() < 0.5 else processes
        number = rng.choice([signal.SIGTERM, signal.SIGINT])
        for process in asked:
            process.send_signal(number)
        (code, _, err), (other, _, says) = ends(processes, timeout=120)
        assert code == other and code in (0, PREEMPTED), err + says
        assert "Traceback" not in err + says
        codes.append(code)
    assert codes.count(PREEMPTED) >= 2
    assert [code for code, _, _ in ends(pair(*command(workdir, text, **options)), timeout=300)] == [0, 0]
    assert_same_leaves(leaves(workdir), leaves(tmp_path / "timed"))


@pytest.mark.slow
def test_a_process_killed_while_it_prepares(tmp_path):
    """The other one ends, and the same command goes on with what was made."""
    line = [sys.executable, "-m", "pretrain", "train", "--config=configs/quickstart.py:tiny", f"--workdir={tmp_path}"]
    processes = pair(*line, stdout=subprocess.DEVNULL)
    for said in processes[0].stderr:
        if "tokenis" in said:  # it does so, or waits for the other to
            break
    processes[1].kill()
    code, _, err = ends(processes)[0]
    assert code == FAULT
    assert "process 1 has ended without a word" in err.splitlines()[-1]
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PROCESSES": "2"}, "without LONGHAUL_COORDINATOR and LONGHAUL_PROCESS"),
        ({"COORDINATOR": "127.0.0.1:{port}"}, "without LONGHAUL_PROCESSES and LONGHAUL_PROCESS"),
        ({"COORDINATOR": "127.0.0.1:{port}", "PROCESSES": "abc", "PROCESS": "0"}, "LONGHAUL_PROCESSES=abc is not a"),
        ({"COORDINATOR": "127.0.0.1:{port}", "PROCESSES": "2", "PROCESS": "-1"}, "LONGHAUL_PROCESS=-1 is not a whole"),
        ({"COORDINATOR": "127.0.0.1:{port}", "PROCESSES": f"{2**32 + 1}", "PROCESS": "0"}, " is not a whole number fr"),
        ({"COORDINATOR": "127.0.0.1:{port}", "PROCESSES": "0", "PROCESS": "0"}, "LONGHAUL_PROCESSES=0 is no run"),
        ({"COORDINATOR": "127.0.0.1:{port}", "PROCESSES": "2", "PROCESS": "2"}, "LONGHAUL_PROCESS=2 is beyond the"),
        ({"COORDINATOR": "somewhere", "PROCESSES": "2", "PROCESS": "0"}, "somewhere is no address of process 0"),
        ({"COORDINATOR": "127.0.0.1:{port}", "PROCESSES": "2", "PROCESS": "0"}, "cannot be opened (Address already in"),
    ],
)
def test_processes_that_cannot_meet(variables, words, tmp_path, text, monkeypatch, capsys):
    """One sentence, exit code 2, and no run of its own in the shared work folder."""
    with socket.create_server(("127.0.0.1", 0)) as used:
        for name, value in variables.items():
            monkeypatch.setenv(f"LONGHAUL_{name}", value.format(port=used.getsockname()[1]))
        assert main(command(tmp_path / "run", text)[3:]) == MISTAKE
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["describe", "prepare"])
def test_commands_that_need_no_device_say_so_too(run_pretrain, command, tmp_path):
    """Describing and preparing ask JAX what it runs on, for want of a device or of processes."""
    where = [f"--workdir={tmp_path}/run"] if command == "prepare" else []
    small = ["--config=configs/quickstart.py:tiny", "--config.tokenizer.kind=bytes"]
    code, _, err = run_pretrain(command, *small, *where, env={"JAX_PLATFORMS": "cuda"})
    assert code == MISTAKE and err.startswith("pretrain: JAX_PLATFORMS=cuda names a platform that JAX finds no device")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LONGHAUL_COORDINATOR", "auto", "JAX finds no cluster here"),
        ("JAX_PLATFORMS", "gpu", "JAX_PLATFORMS=gpu names a platform that JAX finds no device of here"),
        ("JAX_PLATFORMS", "cuda", "JAX_PLATFORMS=cuda names a platform that JAX finds no device of here; install"),
        ("JAX_PLATFORMS", "cuda,cpu", "is not a work folder"),
    ],
)
def test_a_machine_that_is_not_what_it_is_said_to_be(run_pretrain, name, value, words):
    code, _, err = run_pretrain("evaluate", "--workdir=nowhere", env={name: value})
    assert code == MISTAKE
    assert words in err and len(err.splitlines()) == 1


LATE = """
        import jax
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec
        from pretrain.distributed.consensus import Together, gathered
        def late(value):
            if INDEX == 1:
                time.sleep(40)
            return value
        mesh = jax.make_mesh((2,), ('data',), (jax.sharding.AxisType.Auto,))
        rows = NamedSharding(mesh, PartitionSpec('data'))
        ones = jax.make_array_from_callback((2,), rows, lambda index: np.ones(2)[index])
        {first}"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    ["print(gathered(late(1)))", "print(Together(jax.jit(lambda x: late(x).sum()))(ones))"],
    ids=("a meeting", "a program"),
)
def test_a_process_that_comes_late_to_what_it_does_with_others_is_waited_for(first):
    """Devices of CPUs have 30 seconds to find each other when they first compute together."""
    for code, said, err in ends(working(LATE.format(first=first)), timeout=120):
        assert code == 0, err
        assert said in ("[1, 1]\n", "2.0\n")
