"""`pretrain generate --complete`: images cut off below, as the model goes on, and whole, side by side in a PNG file."""

import itertools
import json
import os
from pathlib import Path

import jax
import numpy as np

from input_pipeline import pipeline
from input_pipeline.packing.index_cache import counted
from input_pipeline.sources import images, sources
from pretrain import config as configs
from pretrain.commands.arguments import Complete
from pretrain.commands.shared import check_processes
from pretrain.decoding.decoding import generate
from pretrain.distributed.init import say, start
from pretrain.errors import UserError
from pretrain.run import Run
from pretrain.workdir import Workdir

GAP = 2  # pixels between images
SHOWN = 96  # pixels: smaller images are enlarged to about this, each pixel a square
ABSENT, PAPER = 128, 255  # grey of what is cut off, and white


def run(arguments: Complete) -> None:
    """Completes some images, and writes the picture of them."""
    start()
    workdir, config = arguments.workdir, configs.saved(arguments.workdir)
    check_processes(arguments, config)
    target = Path(arguments.complete)
    _check(config, target, arguments)
    trained = Run(workdir, arguments.step, jax.local_devices()[:1], arguments.average, say)
    originals = _originals(config, workdir, arguments.images, arguments.rows)
    rows, columns, colours = config.data.image
    kept = round(arguments.keep * rows)
    begun, size = kept * columns * colours, rows * columns * colours  # bytes of a prompt and of an image
    _check_model(trained.model, size, workdir)
    prompts = [np.append(trained.tokenizer.end_id, image.ravel()[:begun]).astype(np.int32) for image in originals]
    results = generate(
        trained.model,
        trained.local_params,
        [prompt for prompt in prompts for _ in range(arguments.samples)],
        max_tokens=size - begun,
        **arguments.options(1.0),
        end_id=None,
        vocabulary=256,  # bytes: never the end token
    )
    if jax.process_index() != 0:  # all have decoded the same
        return
    added = np.array([ids for ids, _ in results], np.uint8).reshape(len(originals), arguments.samples, -1)
    images.write_png(target, picture(originals, added, kept))
    if arguments.format == "json":
        facts = {
            "step": trained.step,
            "file": str(target),
            "images": len(originals),
            "samples": arguments.samples,
            "kept": kept,
        }
        print(json.dumps(facts))
    else:
        print(
            f"checkpoint {trained.step}: {counted(len(originals), 'image')} cut off below row {kept} of {rows}, "
            f"{counted(arguments.samples, 'completion')} of each, and the originals, in {target}"
        )


def picture(originals: np.ndarray, added: np.ndarray, kept: int) -> np.ndarray:
    """A row of pictures for each image: cut off, each completion, whole; uint8 [rows, columns, colours].

    originals: uint8 [images, rows, columns, colours]. added: uint8 [images, samples, bytes], what follows the first
    `kept` rows of the image.
    """
    count, rows, columns, colours = originals.shape
    shown = np.repeat(originals[:, None], added.shape[1] + 2, axis=1)  # [images, cut off + completions + whole, ...]
    shown[:, 0, kept:] = ABSENT
    shown[:, 1:-1, kept:] = added.reshape(count, -1, rows - kept, columns, colours)
    scale = -(-SHOWN // max(rows, columns))
    shown = shown.repeat(scale, axis=2).repeat(scale, axis=3)
    edges = ((0, 0), (0, 0), (GAP, 0), (GAP, 0), (0, 0))
    framed = np.pad(shown, edges, constant_values=PAPER)
    whole = framed.transpose(0, 2, 1, 3, 4).reshape(count * framed.shape[2], -1, colours)
    return np.pad(whole, ((0, GAP), (0, GAP), (0, 0)), constant_values=PAPER)


def _originals(config, workdir: str, named: str, count: int) -> np.ndarray:
    """The first `count` images of a split or a source: uint8 [images, rows, columns, colours]."""
    shape = tuple(config.data.image)
    if ":" in named:
        found = [
            np.frombuffer(b"".join(document.chunks), np.uint8)
            for document in itertools.islice(_documents(sources.parse(named, "--images", shape)), count)
        ]
    else:
        sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
        corpus = pipeline.prepare(*sections, Workdir(workdir).folders, report=say)
        found = corpus.first_documents(named, count)
    return np.array(found, np.uint8).reshape(-1, *shape)


def _documents(found):
    for source in found:
        for span in source.spans(1 << 30):
            yield from source.documents(span)


def _check_model(model, size: int, workdir: str) -> None:
    if "inputs" in model.inputs:
        raise UserError(
            f"the model of {workdir} writes for something else that it reads, and cannot go on with an image; train a "
            "decoder for that"
        )
    if size > model.context:
        raise UserError(
            f"the model of {workdir} reads {model.context} bytes (config.model.context), and an image has {size}; to "
            f"complete images train one with --config.model.context={size}"
        )


def _check(config, target: Path, arguments: Complete) -> None:
    if not config.data.image:
        raise UserError(
            f"{arguments.workdir} was trained on text (its config.data.image is empty); leave --complete out and give "
            "--prompt"
        )
    rows = config.data.image[0]
    if round(arguments.keep * rows) >= rows:
        raise UserError(f"--keep={arguments.keep} leaves none of an image's {rows} rows to fill in; lower it")
    if target.suffix.lower() != ".png" and not target.is_dir():
        raise UserError(f"--complete={target} is written as PNG; give it a name that ends in .png")
    if not target.parent.is_dir():
        raise UserError(f"--complete={target} is to lie in {target.parent}, which is no folder; make it first")
    if target.is_dir():
        raise UserError(f"--complete={target} is a folder; give the name of a file in it, such as {target}/images.png")
    if os.path.lexists(target):
        raise UserError(f"--complete={target} is there already, and nothing is overwritten; give another name")
