"""`pretrain evaluate`: scores of a checkpoint, from its work folder alone."""

import contextlib
import functools
import gzip
import lzma
import tempfile
from pathlib import Path

import jax

from input_pipeline import corruption, pipeline, validate
from pretrain import config as configs
from pretrain.checkpoints import restore
from pretrain.checkpoints.average import CheckpointAverage
from pretrain.checkpoints.restore import Checkpoints
from pretrain.checkpoints.teacher import load_teacher
from pretrain.commands.arguments import Evaluate
from pretrain.commands.shared import check_processes
from pretrain.distributed.heartbeat import Watchdog
from pretrain.distributed.init import print_on_host0, start
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import score
from pretrain.losses.objective import perplexity
from pretrain.metrics.progress import Ledger
from pretrain.metrics.tables import one_line, show
from pretrain.parallel.mesh import ANY_DEVICES, fits
from pretrain.step.checks import check_scored
from pretrain.training.startup import OtherRuns, build_run
from pretrain.workdir import Workdir

COMPRESSORS = {
    "gzip": functools.partial(gzip.compress, compresslevel=9),
    "xz": functools.partial(lzma.compress, preset=9),
}


def run(arguments: Evaluate) -> None:
    """Scores a checkpoint and prints the scores."""
    start()
    config, overrides = configs.saved(arguments.workdir), list(arguments.overrides)
    for key in ("every", "batches", "decode"):
        if f"evaluate.{key}" in dict(overrides):
            raise UserError(f"--config.evaluate.{key}: for evaluation during training only. Leave it out.")
    if config.data.layout == "stream":  # in one lane every token has all of its memory before it
        overrides = [("evaluate.batch_size", "1"), *overrides]
    configs.with_overrides(config, overrides)
    check_processes(arguments, config)
    score_checkpoint(config, arguments)


def score_checkpoint(config, arguments: Evaluate) -> None:
    """Scores a checkpoint by `config`: the work folder's, with the overrides of its evaluation."""
    workdir, asked = arguments.workdir, [name for name in ("word_level", *COMPRESSORS) if getattr(arguments, name)]
    if not (arguments.data or config.data.train):
        raise UserError(f"--workdir={workdir}: imported weights have no text. Give --data=text:GLOB.")
    if asked and arguments.batches:
        raise UserError(f"--{asked[0]}: needs the whole split. Leave --batches out.")
    checkpoints = Checkpoints(workdir)
    tokenizer, step = pipeline.open_tokenizer(Workdir(workdir).folders.tokenizer), checkpoints.find(arguments.step)
    step, _ = checkpoints.read(arguments.step, step, lambda step: checkpoints.check_made_with(step, tokenizer, config))
    check_scored(config, arguments.length)
    if arguments.length:
        validate.check_length("--length", arguments.length, corruption.build(config.objective.to_dict()))
    for name in ("length", "batch_size", "stride"):
        config.evaluate[name] = getattr(arguments, name) or config.evaluate[name]
    # Evaluation works on any number of devices, whatever mesh the run was trained on.
    if config.train.backend == "jit" and not fits(config.mesh, jax.device_count()):
        config.mesh.update(ANY_DEVICES)
        print_on_host0(f"the run's mesh does not fit {jax.device_count()} devices: evaluating with config.mesh.fsdp=-1")
    ledger = Ledger()
    watchdog = contextlib.closing(Watchdog(config.train.patience, ledger))
    with watchdog, tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
        # The token store of --data, and of the run's own text where its folder cannot be written.
        prepare, split = functools.partial(pipeline.prepare, scratch=Path(folder)), arguments.split or "validation"
        if arguments.data:
            prepare, split = functools.partial(pipeline.prepare_given, arguments.data, folder), arguments.data
        run = build_run(
            config, workdir, print_on_host0, prepare=prepare, others=OtherRuns(teacher=load_teacher(config, workdir))
        )
        spec, objective = run.spec, run.spec.objective
        if asked and objective.bits_metric is None:
            raise UserError(f"--{asked[0]}: objective {config.objective.kind} scores part of the text. Leave it out.")
        if run.teacher:  # its part of the loss is scored too
            checkpoint = checkpoints.workdir.checkpoint(step)
            restore.check_origin(checkpoint, restore.read_data(checkpoint), {"teacher": run.teacher.fingerprint})
        if arguments.predictions and not objective.metrics:
            raise UserError(f"--predictions: objective {config.objective.kind} is no task. Leave it out.")
        compressors = {name: compress for name, compress in COMPRESSORS.items() if name in asked}
        text = run.corpus.raw_bytes(split) if compressors else b""
        # Compressed before the model is restored, so that both are not in memory at once.
        compressed = {name: 8 * len(compress(text)) / len(text) for name, compress in compressors.items()}
        averaged = CheckpointAverage(checkpoints, arguments.average, print_on_host0)
        step, params = checkpoints.read(arguments.step, step, lambda step: spec.restore_params(averaged, step))
        options = {"batches": arguments.batches, "decode": arguments.decode, "cut": ledger.advance}
        result = score(run, params, split, timed=True, report=print_on_host0, **options)
        result |= {f"{name}_{objective.bits_metric}": bits for name, bits in compressed.items()}
    if jax.process_index() == 0:
        report(result, step, split, objective, arguments)


def report(result: dict, step: int, split: str, objective, arguments: Evaluate) -> None:
    """Prints the scores as tables, or as one JSON object."""
    compressed = [name for name in result if name.partition("_")[0] in COMPRESSORS]
    decoded = [name for name in objective.decode_metrics if name in result]
    sizes = [name for name in ("tokens", "examples") if name in result]
    names = [*objective.metric_names, *decoded, *compressed, *sizes, "tokens_per_second"]
    if arguments.predictions:
        result["predictions"].write(Path(arguments.predictions))
    if arguments.word_level:
        # As the literature has it for sub-word models: exp(total nll / (words + line ends)).
        result["word_perplexity"] = perplexity(result["nll"] / result["words"])
        names += ["word_perplexity", "words"]
    signatures = result["predictions"].signatures() if "predictions" in result else {}
    names, result = [*names, *signatures], result | signatures
    row = {"step": step, "split": split} | {name: result[name] for name in names if name in result}
    tasks = result.get("tasks", {})
    if arguments.format == "json":
        print(one_line(row | ({"tasks": tasks} if tasks else {})))
        return
    show(
        f"checkpoint {step} on {split}, {result['scope']}",
        ("measure", "value"),
        [[n, row[n]] for n in names if n in row],
    )
    for task, figures in tasks.items():
        show(f"{figures['examples']:,} examples of {task}", ("measure", "value"), list(figures.items()))
