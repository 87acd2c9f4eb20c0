"""Arguments that shells, SLURM, gcloud and Kubernetes would like to read reach the program through every launcher."""

import os
import re
import subprocess
import sys

import pytest
import yaml
from standins import GCLOUD, ROOT, SSH, called, project, said, tool

NASTY = [
    "train",
    "--config.data.train=text:my files/a b.txt,c",
    "--workdir=/shared/it's a run",
    'say "hello"',
    "$HOME ${HOME} $(echo no) `echo no` $$ $",
    "two\nlines",
    "a\ttab",
    "*",
    "?[a-z]{a,b}~",
    "~",
    "back\\slash \\n \\",
    "!! !x ^a",
    "# no comment",
    "; & | < > ( ) && ||",
    "",
    "  blanks  in  between  ",
    "%d %% %j",
    "--",
    "größer 漢字 🙂",
    "'\"'\"'",
    "-x=y z",
]


def through_local(folder, home):
    code, _, err = called("local", "--processes", 1, "--logs", folder / "logs", "--", *NASTY, cwd=project(folder))
    assert code == 0, err
    return (folder / "logs" / "process-0.log").read_text()


def through_local_dry_run(folder, home):
    code, out, err = called("local", "--processes", 1, "--dry-run", "--", *NASTY)
    assert code == 0, err
    return run_by_bash(out, project(folder), {"PYTHONPATH": ""})


def through_ssh(folder, home):
    project(home / "my project")
    tool(folder / "ssh", SSH)
    options = ["--hosts=node1", "--folder=my project", f"--ssh={folder / 'ssh'}", f"--logs={folder / 'logs'}"]
    code, _, err = called("ssh", *options, "--", *NASTY, HOME=home, CALLS=folder / "calls")
    assert code == 0, err
    return (folder / "logs" / "node1.log").read_text()


def through_tpu_pod(folder, home):
    project(home / "longhaul")
    tool(folder / "gcloud", GCLOUD)
    path = f"{folder}:{os.environ['PATH']}"
    options = ["--tpu=pod", "--zone=z", "--logs=logs"]
    code, _, err = called("tpu_pod", *options, "--", *NASTY, cwd=folder, HOME=home, PATH=path, CALLS=folder / "calls")
    assert code == 0, err
    return re.sub(r"^\S+ \| ", "", (folder / "logs" / "workers.log").read_text(), flags=re.MULTILINE)


def through_slurm(folder, home):
    tool(folder / "scontrol", "echo node7")
    tool(folder / "srun", 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')
    code, script, err = called("slurm", "--dry-run", "--", *NASTY)
    assert code == 0, err
    places = dict(SLURM_JOB_ID="1", SLURM_JOB_NODELIST="node7", SLURM_NTASKS="1", SLURM_PROCID="0")
    return run_by_bash(script, project(folder), places | {"PATH": f"{folder}:{os.environ['PATH']}"})


def through_apptainer(folder, home):
    tool(folder / "scontrol", "echo node7")
    tool(folder / "srun", 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')
    tool(folder / "apptainer", f"""while [ "$1" != my.sif ]; do shift; done; shift 2; '{sys.executable}' "$@" """)
    code, script, err = called("slurm", "--apptainer=my.sif", "--mounts=/a b:/c", "--dry-run", "--", *NASTY)
    assert code == 0, err
    places = dict(SLURM_JOB_ID="1", SLURM_JOB_NODELIST="node7", SLURM_NTASKS="1", SLURM_PROCID="0")
    return run_by_bash(script, project(folder), places | {"PATH": f"{folder}:{os.environ['PATH']}"})


def through_gke(folder, home):
    code, out, err = called("gke", "--image=registry/longhaul", "--tpu=v5e:4x4", "--", *NASTY)
    assert code == 0, err
    pod = yaml.safe_load(out)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    command = [kubernetes(word, {"HOME": "no"}) for word in pod["containers"][0]["command"]]
    assert command[0] == "python"
    return subprocess.run([sys.executable, *command[1:]], cwd=project(folder), capture_output=True, text=True).stdout


def kubernetes(word, variables):
    """What a container gets of a word: $(NAME) of a known variable is its value, $$ is a dollar."""

    def known(found):
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", known, word)


def run_by_bash(script, cwd, environment):
    done = subprocess.run(["bash"], input=script, cwd=cwd, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("through", [value for name, value in sorted(globals().items()) if name.startswith("through_")])
def test_arguments_arrive_as_they_were_given(through, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    (run,) = said(through(tmp_path / "here", tmp_path / "home"))
    assert run["arguments"] == NASTY


def test_kubernetes_reads_what_is_not_escaped():
    assert kubernetes("$(HOME) $$(HOME) $(OTHER) $", {"HOME": "x"}) == "x $(HOME) $(OTHER) $"


@pytest.mark.parametrize("name", ["ssh", "tpu_pod", "gke"])
def test_variables_are_carried(name, tmp_path):
    variable = "XLA_FLAGS=--a='b c' $(x) \"d\""
    own = dict(
        ssh=["--hosts=a"], tpu_pod=["--tpu=p", "--zone=z"], gke=["--image=i", "--gpu=nvidia-h100-80gb", "--nodes=2"]
    )
    code, out, err = called(name, *own[name], f"--env={variable}", "--dry-run", "--", "train")
    assert code == 0, err
    if name == "gke":
        pod = yaml.safe_load(out)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        (value,) = [one["value"] for one in pod["containers"][0]["env"] if one["name"] == "XLA_FLAGS"]
        assert "XLA_FLAGS=" + kubernetes(value, {"x": "no"}) == variable
        return
    # The line as it is read here, and its last word, or what follows --command=, by a shell there.
    words = run_by_bash(f"printf '%s\\0' {out.splitlines()[-1]}", ROOT, {}).split("\0")
    (there,) = [word.removeprefix("--command=") for word in words if "launch.keeper" in word]
    assert variable in run_by_bash(f"printf '%s\\0' {there.partition('; exec ')[2]}", ROOT, {}).split("\0")


def test_the_package_names_its_launchers():
    done = subprocess.run([sys.executable, "-m", "launch"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    named = re.findall(r"python -m launch\.(\w+) +\S", done.stderr)
    launchers = {path.stem for path in (ROOT / "launch").glob("*.py") if "\ndef main(argv" in path.read_text()}
    assert set(named) == launchers - {"keeper"}
