"""What each command does, once its flags are read. Every function returns an exit code, or None for 0."""

import json
import os
import sys

import jax
from absl import logging as absl_logging

from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.tables import show

DEFAULT_CONFIG = "configs/quickstart.py"


def start() -> None:
    """Joins the other processes of a run, if there are any, and turns the compilation cache on.

    LONGHAUL_COORDINATOR=host:port, LONGHAUL_PROCESSES and LONGHAUL_PROCESS describe a run of several
    processes (`launch` sets them); LONGHAUL_COORDINATOR=auto lets JAX ask the cluster (TPU pods, SLURM).
    LONGHAUL_CACHE is the folder of compiled programs, by default ~/.cache/longhaul; empty turns it off.
    """
    quiet_background_threads()
    cache = os.environ.get("LONGHAUL_CACHE", os.path.expanduser("~/.cache/longhaul/compiled"))
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    coordinator = os.environ.get("LONGHAUL_COORDINATOR")
    if not coordinator:
        return
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if coordinator == "auto":
        jax.distributed.initialize()
    else:
        count, index = (int(os.environ[f"LONGHAUL_{name}"]) for name in ("PROCESSES", "PROCESS"))
        jax.distributed.initialize(coordinator, count, index)


def quiet_background_threads() -> None:
    """Keeps the tracebacks of Orbax's threads off the screen: what they fail with reaches us, and is reported, once.

    After a failed save, callbacks of the write that was given up find their event loop closed; they say nothing new.
    """
    absl_logging.set_verbosity(absl_logging.FATAL)
    default = sys.unraisablehook

    def hook(failure):
        if not (isinstance(failure.exc_value, RuntimeError) and "Event loop is closed" in str(failure.exc_value)):
            default(failure)

    sys.unraisablehook = hook


def resolve(flags, spec: str, overrides):
    """(config, workdir) of a command that takes both; a work folder alone means the config that it holds."""
    if flags.workdir and not spec and os.path.isfile(os.path.join(flags.workdir, configs.RESOLVED)):
        return configs.with_overrides(configs.saved(flags.workdir), overrides), flags.workdir
    config = configs.load(spec or DEFAULT_CONFIG, overrides)
    return config, flags.workdir or os.path.join("runs", config.name)


def train(flags, spec, overrides):
    from pretrain.train import train

    config, workdir = resolve(flags, spec, overrides)
    start()
    return train(config, workdir)


def prepare(flags, spec, overrides):
    from input_pipeline import pipeline

    config, workdir = resolve(flags, spec, overrides)
    corpus = pipeline.prepare(config.data.to_dict(), config.tokenizer.to_dict(), workdir, report=_say, seed=config.seed)
    rows = corpus.summary()
    if flags.format == "json":
        print(json.dumps(rows))
        return
    columns = ("split", "documents", "tokens", "bytes")
    show(f"token store of {workdir}", columns, [[row[name] for name in columns] for row in rows])


def describe(flags, spec, overrides):
    from pretrain import describe

    describe.run(configs.load(spec or DEFAULT_CONFIG, overrides), flags.format)


def evaluate(flags, spec, overrides):
    from pretrain.evaluate import evaluate

    start()
    evaluate(_given_workdir(flags), flags)


def generate(flags, spec, overrides):
    from pretrain.generate import generate

    start()
    generate(_given_workdir(flags), flags)


def _given_workdir(flags) -> str:
    if not flags.workdir:
        raise UserError(
            "--workdir is missing; give the folder of a `pretrain train` run, such as --workdir=runs/quickstart"
        )
    return flags.workdir


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
