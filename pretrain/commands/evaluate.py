"""`pretrain evaluate`: a checkpoint's scores, from its work folder alone."""

import functools
import gzip
import json
import lzma
import math
import tempfile

import jax

from input_pipeline import pipeline
from pretrain.assemble import assemble
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import score
from pretrain.parallel.mesh import fits
from pretrain.processes.host import say
from pretrain.reporting.tables import show

COMPRESSORS = {
    "gzip": functools.partial(gzip.compress, compresslevel=9),
    "xz": functools.partial(lzma.compress, preset=9),
}


def evaluate(config, workdir: str, flags) -> None:
    """Scores a checkpoint of `workdir`; `config` is the work folder's, with what the user changes of its evaluation."""
    checkpoints = Checkpoints(workdir, config.checkpoint, read_only=True)
    tokenizer, step = pipeline.open_tokenizer(workdir), checkpoints.find(flags.step)
    step, _ = checkpoints.read(flags.step, step, lambda step: checkpoints.check_tokenizer(step, tokenizer))
    length = flags.length or config.evaluate.length or config.data.length
    if length > config.model.context:
        raise UserError(
            f"--length={length} is longer than the model's {config.model.context} positions; choose at most that"
        )
    for name in ("word_level", *COMPRESSORS):
        if flags[name].value and flags.batches:
            raise UserError(f"--{name} needs the whole split; leave --batches out")
    if flags.word_level and config.data.image:
        raise UserError(f"--word_level counts words, and {workdir} was trained on images; leave it out")
    if flags.stride > length:
        raise UserError(
            f"--stride={flags.stride} is longer than the window's {length} tokens; set at most that (0 means that)"
        )
    if flags.data and flags["split"].present:
        raise UserError("--data and --split both say what is scored; leave one out")
    config.evaluate.update(length=length, batch_size=flags.batch_size or config.evaluate.batch_size)
    if config.train.backend == "jit" and not fits(config.mesh, jax.device_count()):
        config.mesh.update(data=1, fsdp=-1, sequence=1, tensor=1)  # which any number of devices makes
        say(f"the run's mesh does not fit the {jax.device_count()} devices here; evaluating with config.mesh.fsdp = -1")
    with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:  # of text that is not the run's
        prepare, split = pipeline.prepare, flags.split
        if flags.data:
            prepare, split = functools.partial(pipeline.prepare_given, flags.data, folder), flags.data
        run = assemble(config, workdir, say, prepare=prepare)
        objective = run.engine.learner.objective
        for name in ("word_level", *COMPRESSORS):
            if flags[name].value and objective.bits is None:
                raise UserError(
                    f"--{name} is about all of a text, of which config.objective.kind = {config.objective.kind} "
                    "predicts a part; leave it out"
                )
        step, params = checkpoints.read(
            flags.step, step, lambda step: run.engine.restored_params(checkpoints, step, config.seed)
        )
        result = score(run, params, split, stride=flags.stride, batches=flags.batches, timed=True)
        for name in _compressors(flags):
            text = run.corpus.raw_bytes(split)
            result[f"{name}_{objective.bits}"] = 8 * len(COMPRESSORS[name](text)) / len(text)
    if jax.process_index() == 0:
        report(result, step, split, objective, flags)


def _compressors(flags) -> list[str]:
    """The general compressors that the same bytes are given to."""
    return [name for name in COMPRESSORS if flags[name].value]


def report(result: dict, step: int, split: str, objective, flags) -> None:
    packed = [name for name in result if name.partition("_")[0] in COMPRESSORS]
    names = [*objective.measures, *packed, "tokens", "tokens_per_second"]
    if flags.word_level:
        # The literature's figure for sub-word models: exp(total nll / number of original words and line ends).
        result["word_perplexity"] = math.exp(min(result["nll"] / result["words"], 700))
        names += ["word_perplexity", "words"]
    row = {"step": step, "split": split} | {name: result[name] for name in names}
    if flags.format == "json":
        print(json.dumps(row))
    else:
        show(f"checkpoint {step} on {split}", ("measure", "value"), [[n, row[n]] for n in names])
