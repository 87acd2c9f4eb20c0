"""`pretrain evaluate`: a checkpoint's scores, from its work folder alone."""

import contextlib
import functools
import gzip
import lzma
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from input_pipeline import pipeline, requirements
from input_pipeline.errors import DataError, UnwritableError
from pretrain import config as configs
from pretrain.assemble import assemble, check_scored
from pretrain.checkpoints import params_only
from pretrain.checkpoints.average import Averaged
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.teacher import kept
from pretrain.commands.arguments import Evaluate
from pretrain.commands.shared import check_processes
from pretrain.distributed.init import say, start
from pretrain.distributed.shutdown import leaving
from pretrain.distributed.watchdog import scoring
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import score
from pretrain.losses.base import perplexity
from pretrain.metrics.tables import one_line, show
from pretrain.parallel.mesh import OF_ANY_NUMBER, fits
from pretrain.workdir import Workdir

COMPRESSORS = {
    "gzip": functools.partial(gzip.compress, compresslevel=9),
    "xz": functools.partial(lzma.compress, preset=9),
}


def run(arguments: Evaluate) -> None:
    """Scores a checkpoint and prints how."""
    start()
    config, overrides = configs.saved(arguments.workdir), arguments.overrides
    for key, remedy in (
        ("every", "leave it out"),
        ("batches", "give --batches=N to score part of a split"),
        ("decode", "give --decode=N to decode so many examples of each task"),
    ):
        if f"evaluate.{key}" in dict(overrides):
            raise UserError(f"config.evaluate.{key} is for training alone; {remedy}")
    if config.data.layout == "stream":  # in one lane every token has all the memory that there is before it
        overrides = [("evaluate.batch_size", "1"), *overrides]
    configs.with_overrides(config, overrides)
    check_processes(arguments, config)
    score_checkpoint(config, arguments)


def score_checkpoint(config, arguments: Evaluate) -> None:
    """Scores a checkpoint by `config`: the work folder's, with what the user changes of its evaluation."""
    workdir, asked = arguments.workdir, [name for name in ("word_level", *COMPRESSORS) if getattr(arguments, name)]
    if not (arguments.data or config.data.train):
        raise UserError(
            f"{workdir} holds imported weights and names no text; say what is scored, such as --data=text:/books/*.txt"
        )
    checkpoints = Checkpoints(workdir)
    tokenizer, step = pipeline.open_tokenizer(Workdir(workdir).folders.tokenizer), checkpoints.find(arguments.step)
    step, _ = checkpoints.read(arguments.step, step, lambda step: checkpoints.check_made_with(step, tokenizer, config))
    check_scored(config, arguments.length)
    if arguments.length:
        requirements.check_length("--length", arguments.length, config.objective.to_dict())
    if asked and arguments.batches:
        raise UserError(f"--{asked[0]} needs the whole split; leave --batches out")
    if arguments.word_level and config.data.image:
        raise UserError(f"--word_level counts words, and {workdir} was trained on images; leave it out")
    config.evaluate.update(
        length=arguments.length or config.evaluate.length,
        batch_size=arguments.batch_size or config.evaluate.batch_size,
        stride=arguments.stride or config.evaluate.stride,
    )
    if config.train.backend == "jit" and not fits(config.mesh, jax.device_count()):
        config.mesh.update(OF_ANY_NUMBER)
        say(
            f"the run's mesh does not fit the {jax.device_count()} device{'s' * (jax.device_count() > 1)} here; "
            "evaluating with config.mesh.fsdp = -1"
        )
    with (
        scoring(leaving, config.train.patience) as counted,
        temporary_folder() as folder,
    ):  # of text that is not the run's, and of what its own has no room for
        prepare, split = functools.partial(_prepare_own, workdir, folder), arguments.split or "validation"
        if arguments.data:
            prepare, split = functools.partial(pipeline.prepare_given, arguments.data, folder), arguments.data
        assembly = assemble(config, workdir, say, prepare=prepare, teacher=kept(config, workdir))
        engine, objective = assembly.engine, assembly.learner.objective
        for name in asked:
            if objective.bits is None:
                raise UserError(
                    f"--{name} is about all of a text, of which config.objective.kind = {config.objective.kind} "
                    "predicts a part; leave it out"
                )
            if name in COMPRESSORS and tokenizer.byte_lengths is None:
                raise UserError(
                    f"--{name} gives bits of a byte beside the model's, of which there are none here, since the "
                    f"tokenizer of {workdir} rewrites text; leave it out"
                )
        averaged = Averaged(checkpoints, config.checkpoint, arguments.average, say)
        checkpoints.check_teacher(step, assembly.teacher)
        packed = _packed(assembly.corpus, split, asked)  # before anything is scored: the text may be gone
        step, params = checkpoints.read(arguments.step, step, lambda step: engine.restored_params(averaged, step))
        options = {"batches": arguments.batches, "decode": arguments.decode, "cut": counted}
        result = score(assembly, params, split, timed=True, report=say, **options)
        result |= {f"{name}_{objective.bits}": bits for name, bits in packed.items()}
    if jax.process_index() == 0:
        report(result, step, split, objective, arguments)


def _prepare_own(workdir: str, scratch: str, *sections, **options) -> pipeline.Corpus:
    """As `pipeline.prepare`. Errors: UserError too, where imported weights have a recipe whose text is not there."""
    try:
        return pipeline.prepare(*sections, scratch=Path(scratch), **options)
    except DataError as error:
        if isinstance(error, UnwritableError) or not params_only.begins(Workdir(workdir)):
            raise
        raise UserError(
            f"{workdir} holds imported weights, and what their recipe is trained on cannot be scored "
            f"({str(error).partition(';')[0]}); give --data, such as --data=text:/books/*.txt"
        ) from None


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder for as long as a checkpoint is scored. Errors: UserError where it, or another, cannot be written."""
    with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
        try:
            yield folder
        except UnwritableError as error:
            inside = error.where.is_relative_to(folder)
            remedy = "make room or point TMPDIR to another folder" if inside else "make room, or let it be written"
            raise UserError(f"cannot write {error.where}: {error.why}; {remedy}") from None


def _packed(corpus: pipeline.Corpus, split: str, asked: Sequence[str]) -> dict[str, float]:
    """Bits of a byte of a split's text, by each general compressor that is asked for."""
    wanted = [name for name in asked if name in COMPRESSORS]
    text = corpus.raw_bytes(split) if wanted else b""
    return {name: 8 * len(COMPRESSORS[name](text)) / len(text) for name in wanted}


def report(result: dict, step: int, split: str, objective, arguments: Evaluate) -> None:
    packed = [name for name in result if name.partition("_")[0] in COMPRESSORS]
    found = [name for name in objective.decoded if name in result]
    names = [*objective.measures, *found, *packed, "tokens", "tokens_per_second"]
    if arguments.word_level:
        # The literature's figure for sub-word models: exp(total nll / number of original words and line ends).
        result["word_perplexity"] = perplexity(result["nll"] / result["words"])
        names += ["word_perplexity", "words"]
    row = {"step": step, "split": split} | {name: result[name] for name in names}
    tasks = result.get("tasks", {})
    if arguments.format == "json":
        print(one_line(row | ({"tasks": tasks} if tasks else {})))
        return
    show(f"checkpoint {step} on {split}", ("measure", "value"), [[n, row[n]] for n in names])
    for task, figures in tasks.items():
        show(f"{figures['examples']:,} examples of {task}", ("measure", "value"), list(figures.items()))
