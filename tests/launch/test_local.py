"""The local launcher with real processes: environment, logs, deaths, signals."""

import importlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pretrain.commands.flags import commands
from standins import wait_for

from launch import COMMANDS, supervise, work_folder
from launch.local import WAIT_FOR_DEVICES
from launch.output import hints

ROOT = Path(__file__).resolve().parents[2]


def launch_program(*argv, **options):
    """`python -m launch.local ARGV` as a user types it."""
    command = [sys.executable, "-m", "launch.local", *map(str, argv)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


def start(code, logs, processes=2, devices=None, grace=30.0, restarts=0):
    """Launches Python source `code` in place of the program; gives the running launcher."""
    call = f"launch([sys.executable, '-c', {code!r}], {processes}, {devices}, Path({str(logs)!r}), {grace}, {restarts})"
    source = "import sys; from pathlib import Path; from launch import local; from launch.local import launch; "
    source += f"local.PAUSE = 0.05; sys.exit({call})"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def finish(launcher, timeout=30):
    out, err = launcher.communicate(timeout=timeout)
    return launcher.returncode, out, err


def logs_contain(logs, word, processes=2):
    return all(
        path.exists() and word in path.read_text()
        for path in (logs / f"process-{index}.log" for index in range(processes))
    )


WAIT = "import time; print('ready', flush=True); time.sleep(60)"


def test_every_process_learns_its_place(tmp_path):
    code = """if True:
        import os
        print(*(os.environ[f'LONGHAUL_{n}'] for n in ('COORDINATOR', 'PROCESSES', 'PROCESS')), os.environ['XLA_FLAGS'])
    """
    rc, out, _ = finish(start(code, tmp_path, processes=3, devices=4))
    assert rc == 0
    words = [(tmp_path / f"process-{index}.log").read_text().split() for index in range(3)]
    assert [word[1:3] for word in words] == [["3", "0"], ["3", "1"], ["3", "2"]]
    assert len({word[0] for word in words}) == 1 and words[0][0].startswith("127.0.0.1:")
    counts = [[flag for flag in word[3:] if "device_count" in flag] for word in words]
    assert counts == [["--xla_force_host_platform_device_count=4"]] * 3
    assert {word[3] for word in words} == {WAIT_FOR_DEVICES}  # first: what the user set comes after it, and counts
    assert (tmp_path / "process-0.log").read_text() in out
    assert (tmp_path / "process-1.log").read_text() not in out


def test_one_death_ends_the_rest_and_is_reported(tmp_path):
    code = f"""if True:
        import os
        if os.environ['LONGHAUL_PROCESS'] == '1':
            print('[Gloo] Rank 1 is connected')
            print('the reason')
            raise SystemExit(7)
        {WAIT}
    """
    began = time.monotonic()
    rc, _, err = finish(start(code, tmp_path))
    assert rc == 7
    assert "process 1 ended with exit code 7" in err and "1 | the reason" in err and "Gloo" not in err
    assert time.monotonic() - began < 20  # the other one was not waited for


def test_a_mistake_is_shown_and_not_the_interruption_that_it_brings(tmp_path):
    code = """if True:
        import os, pathlib, signal, time
        first = os.environ['LONGHAUL_PROCESS'] == '0'
        if first:
            signal.signal(signal.SIGTERM, lambda *_: (print('interrupted', flush=True), os._exit(75)))
            print('ready', flush=True)
            time.sleep(60)
        while 'ready' not in pathlib.Path(LOG).read_text():
            time.sleep(0.02)
        print('no such command')
        raise SystemExit(2)
    """.replace("LOG", repr(str(tmp_path / "process-0.log")))
    rc, out, err = finish(start(code, tmp_path))
    assert rc == 2 and "no such command" in err and "ending the others" in err
    assert "ready" in out and "interrupted" not in out + err


def test_others_are_not_ended_where_there_are_none(tmp_path):
    rc, _, err = finish(start("raise SystemExit(3)", tmp_path, processes=1))
    assert rc == 3 and "ended with exit code 3" in err and "ending the others" not in err


def test_the_rest_are_killed_after_the_grace(tmp_path):
    code = """if True:
        import os, signal, time
        if os.environ['LONGHAUL_PROCESS'] == '1':
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGTERM, lambda *_: print('deaf', flush=True))
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(1)
    """
    rc, out, err = finish(start(code, tmp_path, grace=0.5))
    assert rc == 128 + signal.SIGKILL
    assert "process 1 ended with exit code 137" in err
    assert "deaf" in out


@pytest.mark.usefixtures("hang_ups_are_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_every_process_once(tmp_path, number):
    """The end of a terminal, of which system and shell may both tell, as SIGTERM; behind others it is no other."""
    code = f"""if True:
        import signal, time
        seen = []
        signal.signal({signal.SIGTERM if number == signal.SIGHUP else int(number)}, lambda n, _: seen.append(n))
        print('ready', flush=True)
        while not seen:
            time.sleep(0.02)
        time.sleep(0.5)
        print('signals', len(seen), flush=True)
        raise SystemExit(75)
    """
    launcher = start(code, tmp_path)
    wait_for(lambda: logs_contain(tmp_path, "ready"))
    launcher.send_signal(number)
    for again in (signal.SIGHUP, signal.SIGTERM):
        time.sleep(0.1)
        launcher.send_signal(again)
    rc, _, err = finish(launcher)
    assert rc == 75
    assert logs_contain(tmp_path, "signals 1")
    assert "|" not in err  # a run that saved and stopped is no failure: no log is recited


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_was_not_listening_yet_counts_as_interrupted(tmp_path, number):
    launcher = start(WAIT, tmp_path)
    wait_for(lambda: logs_contain(tmp_path, "ready"))
    launcher.send_signal(number)
    assert finish(launcher)[0] == 75


def test_the_processes_go_on_when_the_reader_leaves(tmp_path):
    code = "import time; print('ready', flush=True); time.sleep(0.5); print('more', flush=True); time.sleep(0.5)"
    launcher = start(code, tmp_path)
    for pipe in (launcher.stdout, launcher.stderr):
        pipe.close()
    assert launcher.wait(timeout=30) == 0
    assert logs_contain(tmp_path, "more")


def test_second_signal_kills(tmp_path):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
    launcher = start(deaf, tmp_path)
    wait_for(lambda: logs_contain(tmp_path, "ready"))
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGTERM)
    assert finish(launcher)[0] == 128 + signal.SIGKILL


def test_a_ctrl_c_that_bounces_is_one(tmp_path):
    saves = "import signal, time; signal.signal(signal.SIGINT, lambda *_: exit(time.sleep(1) or 75)); " + WAIT
    launcher = start(saves, tmp_path)
    wait_for(lambda: logs_contain(tmp_path, "ready"))
    for _ in range(3):
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert finish(launcher)[0] == 75


FAILS = """if True:
    import os, pathlib, time
    print('started', flush=True)
    left = pathlib.Path({logs!r}, 'codes')
    if os.environ['LONGHAUL_PROCESS'] == '1':
        first, *rest = left.read_text().split()
        left.write_text(' '.join(rest))
        os._exit(int(first)) if first != '-9' else os.kill(os.getpid(), 9)
    else:
        time.sleep(0.5)
"""


@pytest.mark.parametrize(
    ("codes", "restarts", "code", "starts"),
    [("75 1 -9 0", 5, 0, 4), ("1 75 1", 1, 75, 2), ("2 0", 5, 2, 1), ("0", 5, 0, 1), ("-9 2", 5, 2, 2)],
)
def test_restarts_after_preemptions_and_faults_only(tmp_path, codes, restarts, code, starts):
    (tmp_path / "codes").write_text(codes)
    rc, _, err = finish(start(FAILS.format(logs=str(tmp_path)), tmp_path, restarts=restarts))
    assert rc == code
    assert (tmp_path / "process-1.log").read_text().count("started") == starts
    assert err.count("starting again") == starts - 1


def test_each_attempt_shows_its_own_output_once(tmp_path):
    (tmp_path / "codes").write_text("1 1 0")
    code, out, err = finish(start(FAILS.format(logs=str(tmp_path)), tmp_path, restarts=5))
    written = (tmp_path / "process-0.log").read_text().count("started")  # not where it was ended before it began
    assert code == 0 and 1 <= written <= 3 and out.count("started") == written
    assert err.count("1 | started") == 2  # of the end of process 1's log, what belongs to that attempt


def test_nobody_need_read_what_a_launcher_prints(tmp_path):
    flags = ["--processes", "1", "--logs", str(tmp_path), "--", "help"]
    command = ["bash", "-c", '"$@" >&-', "closed", sys.executable, "-m", "launch.local", *flags]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode == 0
    assert (tmp_path / "process-0.log").read_text().count("pretrain") < 100


def test_gloos_greetings_stay_in_the_log(tmp_path, capfd):
    log = tmp_path / "log"
    log.touch()
    words = [b"a\n[Gl", b"oo] Rank 0 is connected", b" to 1\n[Gloo", b"my line\nsaid [Gloo] b", b"\n[Glo"]

    class Writes:  # what a process prints, piece by piece, as it is looked at
        returncode = 0

        def poll(self):
            with log.open("ab") as out:
                out.write(words.pop(0))
            return None if words else 0

    with supervise.Signals() as signals:
        assert supervise.supervise([supervise.Child("process 0", Writes(), log)], 0.0, signals) == 0
    assert capfd.readouterr().out == "a\n[Gloomy line\nsaid [Gloo] b\n[Glo"


def test_the_same_command_again_keeps_the_log_and_shows_its_own_part_only(tmp_path):
    assert finish(start("print('one')", tmp_path, processes=1))[0] == 0
    rc, out, _ = finish(start("print('two')", tmp_path, processes=1))
    assert rc == 0 and "two" in out and "one" not in out
    first, _, mark, second = (tmp_path / "process-0.log").read_text().splitlines()
    assert first == "one" and mark.startswith("launch: start at ") and second == "two"


def test_no_restart_of_a_run_that_was_asked_to_stop(tmp_path):
    launcher = start(WAIT, tmp_path, restarts=5)
    wait_for(lambda: logs_contain(tmp_path, "ready"))
    launcher.send_signal(signal.SIGTERM)
    rc, _, err = finish(launcher)
    assert rc == 75 and "starting again" not in err


def test_dry_run_prints_the_commands():
    done = launch_program("--processes", 2, "--devices", 4, "--dry-run", "--", "train", "--workdir=a b")
    assert done.returncode == 0
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["env", "env"]
    assert [line[-4:] for line in lines] == [["-m", "pretrain", "train", "--workdir=a b"]] * 2
    assert [line[3] for line in lines] == ["LONGHAUL_PROCESS=0", "LONGHAUL_PROCESS=1"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("program", "folder"),
    [
        (["train", "--workdir=a b"], "'a b"),
        (["train"], "runs/quickstart"),
        (["train", "--config=configs/quickstart.py:tiny"], "runs/quickstart-tiny"),
        (["train", "--config=configs/gpt3.py:xl"], "runs/gpt3:xl"),
        (["train", "--config", "configs/gpt2.py"], "runs/gpt2:small"),
        (["train", "--config=configs/gpt2.py", "--config.name=mine"], "runs/mine"),
        (["train", "--config=/no/such/mine.py"], "WORKDIR"),
    ],
)
def test_hints_are_a_line_each_and_name_the_folder_that_train_takes(program, folder, capfd):
    hints(program, "tail", "Ctrl-C")
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        *("watch", "curves", "where the time goes", "stop with everything saved", "go on")
    ]
    assert f"tensorboard --logdir={folder}/metrics" in lines[1]


@pytest.mark.parametrize("command", ("evaluate", "prepare"))
def test_what_does_not_train_has_no_curves(command, capfd):
    hints([command, "--workdir=runs/x"], "tail", "Ctrl-C")
    assert capfd.readouterr().err == "launch: watch: tail\nlaunch: stop: Ctrl-C\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
def test_that_folder_is_named_as_the_config_is(name):
    recipe = importlib.import_module(f"configs.{name}")
    for variant in ("", *getattr(recipe, "VARIANTS", ())) if hasattr(recipe, "get_config") else ():
        config = recipe.get_config(*([variant] if variant else []))
        assert work_folder(["train", f"--config=configs/{name}.py:{variant}"]) == f"runs/{config.name}"


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_no_process_outlives_a_killed_launcher(tmp_path):
    launcher = start("import os; print('pid', os.getpid(), flush=True); " + WAIT, tmp_path)
    wait_for(lambda: logs_contain(tmp_path, "ready"))
    pids = [int((tmp_path / f"process-{index}.log").read_text().split()[1]) for index in range(2)]
    launcher.kill()
    launcher.communicate(timeout=10)

    def gone(pid):
        try:
            os.kill(pid, 0)
            # A killed process stays as a zombie where nothing reaps orphans.
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (ProcessLookupError, FileNotFoundError):
            return True

    wait_for(lambda: all(map(gone, pids)))
    assert launcher.returncode == -signal.SIGKILL


def test_runs_the_program(tmp_path):
    done = launch_program("--processes", 2, "--logs", tmp_path, "--", "--help")
    assert done.returncode == 0
    assert "usage: pretrain" in done.stdout
    assert "usage: pretrain" in (tmp_path / "process-1.log").read_text()


def test_passes_on_the_programs_mistake(tmp_path):
    done = launch_program("--logs", tmp_path, "--", "train", "--config=configs/quickstrat.py")
    assert done.returncode == 2
    assert "there is no recipe configs/quickstrat" in done.stdout + done.stderr  # of whichever process ends first


def test_knows_the_programs_commands():
    assert {*COMMANDS} == {*commands()}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--processes", "2"], "name what to run after '--'"),
        (["--processes", "0", "--", "train"], "'0' is no whole number from 1 up"),
        (["--grace", "nan", "--", "train"], "nan is no time"),
        (["--grace", "-1", "--", "train"], "-1 is no time"),
        (["--logs", "pyproject.toml", "--", "train"], "pyproject.toml cannot be made a folder (File exists)"),
        (["--proceses", "2", "--", "train"], "unrecognized arguments: --proceses 2; did you mean --processes?"),
        (["--proceses=2", "--", "train"], "did you mean --processes?"),
        (["--process=2", "--", "train"], "did you mean --processes?"),
        (["--qqqq", "--", "train"], "what comes after '--' goes to the program"),
    ],
)
def test_mistakes(argv, message):
    done = launch_program(*argv)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_attempts_that_end_soon_are_further_and_further_apart(monkeypatch):
    now, ends = [0.0], [0.0]
    attempts = [(75, 1.0), (1, 1.0), (1, 1.0), (1, 900.0), (1, 1.0), (0, 1.0)]  # exit codes, and how long they lasted

    def attempt(number):
        now[0] += attempts[number][1]
        ends.append(now[0])
        return attempts[number][0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(supervise.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(supervise.time, "sleep", sleep)
    with supervise.Signals() as signals:
        assert supervise.again(attempt, 9, 100.0, signals) == 0
    pauses = [ends[i + 1] - ends[i] - lasted for i, (_, lasted) in enumerate(attempts)]
    assert [round(pause) for pause in pauses] == [0, 100, 200, 300, 100, 200]
