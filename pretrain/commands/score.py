"""`pretrain score`: nats, tokens, bytes and words of texts."""

import json
from pathlib import Path

import jax

from pretrain.commands.arguments import Score
from pretrain.commands.shared import check_out
from pretrain.distributed.init import print_on_host0, start
from pretrain.metrics.tables import one_line, show
from pretrain.run import Run
from pretrain.scoring.inputs import read_input
from pretrain.scoring.text_scores import texts_or_pairs, total


def run(arguments: Score) -> None:
    """Scores each text of a file, writes the scores and prints their sums."""
    start()
    check_out(arguments.output, "--output")
    texts = texts_or_pairs(read_input(arguments.input))
    trained = Run(arguments.workdir, arguments.step, None, arguments.average, print_on_host0)
    scores = trained.score(texts, tokens=arguments.tokens, within_word=arguments.within_word)
    if jax.process_index() != 0:
        return
    if arguments.output:
        with Path(arguments.output).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in scores)
    sums = {"step": trained.step, "texts": len(scores)} | total(scores)
    if arguments.format == "json":
        print(one_line(sums))
    else:
        show(f"checkpoint {trained.step}", ("measure", "value"), list(sums.items())[1:])
