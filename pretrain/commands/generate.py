"""`pretrain generate`: continues prompts with a checkpoint of a work folder."""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from input_pipeline.away import contents
from input_pipeline.packing import control_codes
from input_pipeline.sources import sources
from pretrain import config as configs
from pretrain.commands.arguments import Generate
from pretrain.commands.shared import check_processes
from pretrain.decoding.decoding import generate
from pretrain.distributed.init import say, start
from pretrain.errors import UserError, reason
from pretrain.metrics.tables import one_line
from pretrain.run import Run


def run(arguments: Generate) -> None:
    """Continues the prompts, and prints what the model wrote."""
    start()
    config = configs.saved(arguments.workdir)
    check_processes(arguments, config)
    if config.data.image:
        raise UserError(
            f"{arguments.workdir} was trained on images, which no prompt begins; give --complete=FILE.png to fill in "
            "the lower part of some"
        )
    prompts = read_prompts(arguments)
    trained = Run(arguments.workdir, arguments.step, jax.local_devices()[:1], arguments.average, say)
    tokenizer, step = trained.tokenizer, trained.step
    begun, source, continued = trained.prompts(prompts)
    warn_of_codes(trained.config, tokenizer, prompts)
    shown = prompts if continued else [""] * len(prompts)  # in front of what is written
    stream = Stream(tokenizer, shown[0], begun[0]) if streams(arguments, prompts) else None
    results = generate(
        trained.model,
        trained.local_params,
        begun,
        **arguments.options(),
        end_id=tokenizer.end_id,
        vocabulary=tokenizer.vocab_size,
        source=source,
        on_token=stream,
    )
    if jax.process_index() != 0:  # all have decoded the same
        return
    texts = [
        tokenizer.continuation(before, ids, head) for head, before, (ids, _) in zip(shown, begun, results, strict=True)
    ]
    tell_of_nothing(tokenizer, prompts, [ids for ids, _ in results])
    if stream:
        stream.close()
    elif arguments.format == "json":
        for prompt, text, (ids, score) in zip(prompts, texts, results, strict=True):
            row = {"step": step, "prompt": prompt, "text": text, "tokens": len(ids), "log_probability": float(score)}
            row["ids"] = [int(i) for i in ids]
            print(one_line(row))
    else:
        print("\n\n".join(head + text for head, text in zip(shown, texts, strict=True)))


def read_prompts(arguments: Generate) -> list[str]:
    """The prompts of --prompt and --prompt_file; one empty prompt where there are none."""
    prompts = list(arguments.prompt)
    if arguments.prompt_file:
        try:
            text = contents(Path(arguments.prompt_file)).decode("utf-8-sig")
        except OSError as error:
            raise UserError(
                f"--prompt_file={arguments.prompt_file} cannot be read ({reason(error)}); name a file of prompts"
            ) from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"--prompt_file={arguments.prompt_file} is not UTF-8 ({error}); write it in UTF-8"
            ) from error
        if not text:
            raise UserError(f"--prompt_file={arguments.prompt_file} is empty; write one prompt a line, or leave it out")
        prompts += [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    return prompts or [""]


def warn_of_codes(config, tokenizer, prompts: Sequence[str]) -> None:
    """Says which prompt begins with no control code, where all that a model was trained on did.

    They are not refused: an imported model has codes that its recipe's sources do not name.
    """
    if "coded" in config.objective and config.objective.coded:
        named = sources.parse(config.data.train, "data.train", config.data.image)
        codes = list(dict.fromkeys(source.code for source in named))
        for text in control_codes.without(prompts, codes, tokenizer):
            say(
                f"the prompt {text!r:.40} begins with none of the control codes that data.train names "
                f"({', '.join(codes)}), and all that this model was trained on began with one: begin it with one of "
                "these, or of those that it was imported with"
            )


def tell_of_nothing(tokenizer, prompts: Sequence[str], written: Sequence[np.ndarray]) -> None:
    """Says behind which prompt the model wrote no text at all."""
    for prompt, ids in zip(prompts, written, strict=True):
        if len(ids) == 1 and ids[0] == tokenizer.end_id:
            say(f"the model ended its text at once behind the prompt {prompt!r:.40}")


def streams(arguments: Generate, prompts) -> bool:
    """Whether tokens are shown as they come: one sampled continuation, on a terminal."""
    return (
        jax.process_index() == 0
        and sys.stdout is not None
        and sys.stdout.isatty()
        and arguments.format == "table"
        and len(prompts) == 1
        and arguments.beams == 1
    )


class Stream:
    """Prints a continuation token by token; a character split over tokens waits until it is whole."""

    def __init__(self, tokenizer, prompt: str, ids: Sequence[int]):
        self._decoder = tokenizer.decoder(ids, prompt)
        print(prompt, end="", flush=True)

    def __call__(self, row: int, token: int) -> None:
        print(self._decoder.feed(token), end="", flush=True)

    def close(self) -> None:
        print(self._decoder.finish())
