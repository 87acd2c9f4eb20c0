"""`pretrain attend`: a page about the attention of a checkpoint in one text."""

from pathlib import Path

import jax

from pretrain.commands.arguments import Attend
from pretrain.commands.shared import check_out
from pretrain.distributed.init import print_on_host0, start
from pretrain.run import Run
from pretrain.scoring.attention_page import render


def run(arguments: Attend) -> None:
    """Writes the page."""
    start()
    check_out(arguments.out)
    trained = Run(arguments.workdir, arguments.step, jax.local_devices()[:1], arguments.average, print_on_host0)
    length = min(arguments.length, trained.model.context)
    targets = [arguments.target] if arguments.target else None
    (found,) = trained.attention([arguments.text], targets, length)
    if found.cut:
        print_on_host0(f"warning: the text is longer than {length} tokens and is cut; see --length")
    if jax.process_index() == 0:
        title = f"{trained.config.name}, checkpoint {trained.step}"
        Path(arguments.out).write_text(render(found, title), encoding="utf-8")
        sizes = ", ".join(f"{kind} {' x '.join(map(str, one.shape))}" for kind, one in found.weights.items())
        print_on_host0(f"layers x heads x tokens: {sizes}; open {arguments.out}")
