"""`pretrain evaluate`: scores of a checkpoint, from its work folder alone."""

import contextlib
import functools
import gzip
import lzma
import re
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jax

from input_pipeline import corruption, pipeline, validate
from input_pipeline.sources.parser import named_sources
from input_pipeline.splits import SPLITS
from pretrain import config as configs
from pretrain.checkpoints import restore
from pretrain.checkpoints.average import CheckpointAverage
from pretrain.checkpoints.init_from import check_labels
from pretrain.checkpoints.restore import Checkpoints
from pretrain.checkpoints.teacher import load_teacher
from pretrain.commands.arguments import Evaluate
from pretrain.commands.evaluate_tasks import ask_tasks
from pretrain.commands.shared import check_out, check_processes
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
    check_out(arguments.predictions, "--predictions")
    (ask_tasks if arguments.tasks else score_checkpoint)(config, arguments)


def score_checkpoint(config, arguments: Evaluate) -> None:
    """Scores a checkpoint by `config`: the work folder's, with the overrides of its evaluation."""
    workdir, asked = arguments.workdir, [name for name in ("word_level", *COMPRESSORS) if getattr(arguments, name)]
    given = named_sources(arguments.data, "--data")
    if not (given or arguments.task or config.data.train):
        raise UserError(f"--workdir={workdir}: imported weights have no text. Give --data=text:GLOB.")
    if asked and arguments.batches:
        raise UserError(f"--{asked[0]}: needs the whole split. Leave --batches out.")
    checkpoints = Checkpoints(workdir, subset=bool(arguments.task))
    tokenizer, step = pipeline.open_tokenizer(Workdir(workdir).folders.tokenizer), checkpoints.find(arguments.step)
    saved, heads = config, () if arguments.task else None  # a task reads no heads of pretraining
    check = functools.partial(checkpoints.check_made_with, tokenizer=tokenizer, config=saved, read=heads)
    step, _ = checkpoints.read(arguments.step, step, check)
    teacher = None if arguments.task else load_teacher(config, workdir)
    if arguments.task:
        config, split = as_task(config, arguments), arguments.split or "validation"
        given = given or {split: config.data[split] if split in SPLITS else ""}
        if not all(given.values()):
            raise UserError(f"--task={arguments.task}: has no data.{split}. Give --data.")
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
        prepare = functools.partial(pipeline.prepare, scratch=Path(folder))
        if given:
            prepare = functools.partial(pipeline.prepare_given, given, folder)
        splits = list(given) or [arguments.split or "validation"]
        run = build_run(config, workdir, print_on_host0, prepare=prepare, others=OtherRuns(teacher=teacher))
        spec, objective = run.spec, run.spec.objective
        if asked and objective.bits_metric is None:
            raise UserError(f"--{asked[0]}: objective {config.objective.kind} scores part of the text. Leave it out.")
        if run.teacher:  # its part of the loss is scored too
            checkpoint = checkpoints.workdir.checkpoint(step)
            restore.check_origin(checkpoint, restore.read_data(checkpoint), {"teacher": run.teacher.fingerprint})
        if arguments.predictions and not objective.metrics:
            raise UserError(f"--predictions: objective {config.objective.kind} is no task. Leave it out.")
        compressors = {name: compress for name, compress in COMPRESSORS.items() if name in asked}
        # Compressed before the model is restored, so that both are not in memory at once.
        compressed = {}
        for split in splits if compressors else ():
            text = run.corpus.raw_bytes(split)
            bits = {name: 8 * len(compress(text)) / len(text) for name, compress in compressors.items()}
            compressed[split] = {f"{name}_{objective.bits_metric}": value for name, value in bits.items()}
        averaged = CheckpointAverage(checkpoints, arguments.average, print_on_host0)
        step, params = checkpoints.read(arguments.step, step, lambda step: spec.restore_params(averaged, step))
        options = {"batches": arguments.batches, "decode": arguments.decode, "cut": ledger.advance}
        options["unlabelled"] = bool(arguments.predictions)
        results = {}
        for split in splits:
            results[split] = score(run, params, split, timed=True, report=print_on_host0, **options)
            results[split] |= compressed.get(split, {})
            if spec.model.mixes:
                results[split]["mix"] = spec.model.mix_weights(spec.to_global(params))
            if arguments.word_level:
                # As the literature has it for sub-word models: exp(total nll / (words + line ends)).
                nats = results[split]["nll"] / results[split]["words"]
                results[split]["word_perplexity"] = perplexity(nats)
    if jax.process_index() == 0 and len(results) == 1:
        report(results[split], step, split, objective, arguments)
    elif jax.process_index() == 0:
        compare(results, step, objective, arguments)


def as_task(config, arguments: Evaluate):
    """The config of a recipe of a task, for the model of a run."""
    # Without start_from a recipe has a model of its own, which the run's replaces.
    task = configs.load(arguments.task, arguments.overrides)
    if task.data.layout not in validate.EXAMPLES:
        raise UserError(
            f"--task={arguments.task}: reads no labelled records. Name a recipe such as configs/tasks.py:sst2."
        )
    with task.unlocked():
        task.update({name: config[name] for name in ("model", "tokenizer", "mesh")})
        task.model = config.model  # without the recipe's own keys
        task.data.length = min(task.data.length, config.model.context)
        task.train.update(backend=config.train.backend, start_from=config.train.start_from)
    check_labels(config.objective, task.objective, f"--task={arguments.task}")
    return task


def compare(results: Mapping[str, dict], step: int, objective, arguments: Evaluate) -> None:
    """Prints the scores of several sources as one table, or as one JSON object.

    Below them are their mean, and the gap: the first less the mean of the others (Hu et al. 2020, section 4.3).
    """
    # A source without labels has no metrics.
    names = [name for name in measures(objective) if all(name in one for one in results.values())]
    rows = {source: {name: one[name] for name in names} for source, one in results.items()}
    first, *others = rows.values()
    mean = {name: statistics.fmean(row[name] for row in rows.values()) for name in names}
    gap = {name: first[name] - statistics.fmean(row[name] for row in others) for name in names}
    if arguments.predictions:
        path = Path(arguments.predictions)
        for source, one in results.items():
            name = re.sub(r"[^.\w-]+", "-", source)
            one["predictions"].write(path.with_name(f"{path.stem}.{name}{path.suffix}"))
    if arguments.format == "json":
        print(one_line({"step": step, "data": rows, "mean": mean, "gap": gap}))
        return
    table = rows | {"mean": mean, f"gap of {next(iter(rows))}": gap}
    scopes = " / ".join(dict.fromkeys(one["scope"] for one in results.values()))
    show(f"checkpoint {step}, {scopes}", ("data", *names), [[source, *row.values()] for source, row in table.items()])


def measures(objective) -> list[str]:
    """Names of all that may be printed of a source, besides its size."""
    compressed = [f"{name}_{objective.bits_metric}" for name in COMPRESSORS]
    return [*objective.metric_names, *objective.decode_metrics, *compressed, "word_perplexity"]


def report(result: dict, step: int, split: str, objective, arguments: Evaluate) -> None:
    """Prints the scores as tables, or as one JSON object."""
    names = [*measures(objective), "tokens", "examples", "tokens_per_second", *["words"] * arguments.word_level]
    if arguments.predictions:
        result["predictions"].write(Path(arguments.predictions))
    signatures = result["predictions"].signatures() if "predictions" in result else {}
    names, result = [*names, *signatures], result | signatures
    row = {"step": step, "split": split} | {name: result[name] for name in names if name in result}
    tasks, more = result.get("tasks", {}), {name: result[name] for name in ("tasks", "mix") if result.get(name)}
    if arguments.format == "json":
        print(one_line(row | more))
        return
    show(
        f"checkpoint {step} on {split}, {result['scope']}",
        ("measure", "value"),
        [[n, row[n]] for n in names if n in row],
    )
    if weights := result.get("mix"):
        show("layers that the head reads (model.mix), 0 for embeddings", ("layer", "weight"), [*enumerate(weights)])
    for task, figures in tasks.items():
        show(f"{figures['examples']:,} examples of {task}", ("measure", "value"), list(figures.items()))
