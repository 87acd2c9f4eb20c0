"""`pretrain generate --complete`: images cut off, completed, and whole, side by side in a PNG file."""

import itertools
import json
from pathlib import Path

import jax
import numpy as np

from input_pipeline import pipeline
from input_pipeline.sources import images, parser
from pretrain import config as configs
from pretrain.commands.arguments import Complete
from pretrain.commands.shared import check_processes
from pretrain.decoding.sampling import generate
from pretrain.distributed.init import print_on_host0, start
from pretrain.errors import UserError
from pretrain.run import Run
from pretrain.workdir import Workdir

GAP = 2  # pixels between images
SHOWN = 96  # pixels: smaller images are enlarged to about this size
ABSENT, PAPER = 128, 255  # grey of the missing part, and white


def run(arguments: Complete) -> None:
    """Completes some images and writes their picture."""
    start()
    workdir, config = arguments.workdir, configs.saved(arguments.workdir)
    check_processes(arguments, config)
    target = Path(arguments.complete)
    _check(config, target, arguments)
    trained = Run(workdir, arguments.step, jax.local_devices()[:1], arguments.average, print_on_host0)
    originals = _originals(config, workdir, arguments.images, arguments.rows)
    rows, columns, colours = config.data.image
    kept = round(arguments.keep * rows)
    begun, size = kept * columns * colours, rows * columns * colours  # bytes of a prompt and of an image
    # A row starts with the end token, as in training; then the kept bytes in the order row, column, colour.
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
    if jax.process_index() != 0:  # all processes decode the same
        return
    added = np.array([ids for ids, _ in results], np.uint8).reshape(len(originals), arguments.samples, -1)
    images.write_png(target, picture(originals, added, kept))
    if arguments.format == "json":
        facts = {"step": trained.step, "file": str(target), "images": len(originals)}
        print(json.dumps(facts | {"samples": arguments.samples, "kept": kept}))
    else:
        print(
            f"checkpoint {trained.step}: {len(originals)} images cut off below row {kept} of {rows}, "
            f"{arguments.samples} completions of each: {target}"
        )


def picture(originals: np.ndarray, added: np.ndarray, kept: int) -> np.ndarray:
    """One row of pictures per image: cut off, each completion, whole; uint8 [rows, columns, colours].

    originals: uint8 [images, rows, columns, colours]; added: uint8 [images, samples, bytes], after `kept` rows.
    """
    count, rows, columns, colours = originals.shape
    shown = np.repeat(originals[:, None], added.shape[1] + 2, axis=1)  # [images, cut off + completions + whole, ...]
    shown[:, 0, kept:] = ABSENT
    shown[:, 1:-1, kept:] = added.reshape(count, -1, rows - kept, columns, colours)
    scale = -(-SHOWN // max(rows, columns))  # ceiling division
    shown = shown.repeat(scale, axis=2).repeat(scale, axis=3)
    edges = ((0, 0), (0, 0), (GAP, 0), (GAP, 0), (0, 0))
    framed = np.pad(shown, edges, constant_values=PAPER)
    whole = framed.transpose(0, 2, 1, 3, 4).reshape(count * framed.shape[2], -1, colours)
    return np.pad(whole, ((0, GAP), (0, GAP), (0, 0)), constant_values=PAPER)


def _originals(config, workdir: str, named: str, count: int) -> np.ndarray:
    """The first `count` images of a split or a source: uint8 [images, rows, columns, colours]."""
    shape = tuple(config.data.image)
    if ":" in named:
        documents = (
            document
            for source in parser.parse(named, "--images", shape)
            for span in source.spans(1 << 30)
            for document in source.good_documents(span)
        )
        found = [np.frombuffer(b"".join(one.chunks), np.uint8) for one in itertools.islice(documents, count)]
    else:
        sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
        corpus = pipeline.prepare(*sections, Workdir(workdir).folders, report=print_on_host0)
        found = corpus.first_documents(named, count)
    return np.array(found, np.uint8).reshape(-1, *shape)


def _check(config, target: Path, arguments: Complete) -> None:
    """Raises UserError for a run of text, a share that leaves nothing to complete, and an unusable file name."""
    rows = config.data.image[0] if config.data.image else 1
    folder = target.parent.is_dir()
    for wrong, problem in (
        (not config.data.image, f"--complete: {arguments.workdir} was trained on text. Give --prompt instead."),
        (round(arguments.keep * rows) >= rows, f"--keep={arguments.keep}: leaves no row to complete. Lower it."),
        (target.suffix.lower() != ".png" or not folder, f"--complete={target}: not a PNG file in a folder. Change it."),
        (target.exists(), f"--complete={target}: exists, and nothing is overwritten. Give another name."),
    ):
        if wrong:
            raise UserError(problem)
