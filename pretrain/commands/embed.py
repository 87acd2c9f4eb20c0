"""`pretrain embed`: hidden states of texts in a NumPy file."""

from pathlib import Path

import jax
import numpy as np

from pretrain.commands.arguments import Embed
from pretrain.commands.shared import check_out
from pretrain.distributed.init import print_on_host0, start
from pretrain.run import Run
from pretrain.scoring.hidden import embed, hidden
from pretrain.scoring.inputs import read_input, texts_of


def run(arguments: Embed) -> None:
    """Writes `states`, float32 [N, D], or of words and tokens [all, D] with the `ends` of each text, int64 [N]."""
    start()
    per_token = arguments.pool in ("word", "none")
    check_out(arguments.out)
    texts = texts_of(read_input(arguments.input), field=arguments.field)
    trained = Run(arguments.workdir, arguments.step, jax.local_devices(), arguments.average, print_on_host0)
    rows = trained.reader.rows(texts, arguments.length, spans=arguments.pool == "word")
    if cut := sum(row.cut for row in rows):
        longer = f"longer than {arguments.length or trained.model.context} tokens and are cut"
        print_on_host0(f"warning: {cut:,} of {len(texts):,} texts are {longer}")
    options = {"stack": arguments.stack, "batch_size": arguments.batch_size}
    if not (arguments.layers or per_token):
        states = embed(trained.reader, rows, arguments.pool, arguments.normalize, **options)
    else:
        states = hidden(trained.reader, rows, arguments.layers or -1, arguments.pool, **options)
    if jax.process_index() != 0:  # all processes read the same
        return
    arrays = {"states": states}
    if per_token:
        # Texts differ in length: they follow each other along the axis of tokens, the last but one.
        arrays = {"states": np.concatenate(states, axis=-2), "ends": np.cumsum([one.shape[-2] for one in states])}
    with Path(arguments.out).open("wb") as file:
        np.savez(file, step=trained.step, **arrays)
    print_on_host0(f"checkpoint {trained.step}: {list(arrays['states'].shape)} float32 to {arguments.out}")
