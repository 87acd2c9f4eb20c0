"""`pretrain generate`: continues prompts with a checkpoint."""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from input_pipeline.packing.concat import texts_without_code
from input_pipeline.sources import parser
from pretrain import config as configs
from pretrain.commands.arguments import Generate
from pretrain.commands.shared import check_processes
from pretrain.decoding.sampling import generate
from pretrain.distributed.init import print_on_host0, start
from pretrain.errors import UserError, reason
from pretrain.metrics.tables import one_line
from pretrain.run import Run


def run(arguments: Generate) -> None:
    """Continues the prompts and prints the texts."""
    start()
    config = configs.saved(arguments.workdir)
    check_processes(arguments, config)
    if config.data.image:
        raise UserError(f"--workdir={arguments.workdir}: trained on images. Give --complete=FILE.png.")
    prompts = read_prompts(arguments)
    trained = Run(arguments.workdir, arguments.step, jax.local_devices()[:1], arguments.average, print_on_host0)
    tokenizer, step = trained.tokenizer, trained.step
    begun, source, continued = trained.prompts(prompts)
    warn_of_codes(trained.config, tokenizer, prompts)
    shown = prompts if continued else [""] * len(prompts)  # printed before the new text
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
    if jax.process_index() != 0:  # all processes decode the same
        return
    texts = [
        tokenizer.continuation(before, ids, head) for head, before, (ids, _) in zip(shown, begun, results, strict=True)
    ]
    for prompt, (ids, _) in zip(prompts, results, strict=True):
        if len(ids) == 1 and ids[0] == tokenizer.end_id:
            print_on_host0(f"the model ended its text at once after the prompt {prompt!r:.40}")
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
            text = Path(arguments.prompt_file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--prompt_file={arguments.prompt_file}: {reason(error)}. Name a UTF-8 file.") from error
        if not text:
            raise UserError(f"--prompt_file={arguments.prompt_file}: empty. Write one prompt a line.")
        prompts += text.splitlines()
    return prompts or [""]


def warn_of_codes(config, tokenizer, prompts: Sequence[str]) -> None:
    """Warns of prompts without a control code, where every row of the training text starts with one (CTRL)."""
    if "coded" in config.objective and config.objective.coded:
        codes = list(dict.fromkeys(s.code for s in parser.parse(config.data.train, "data.train", config.data.image)))
        for text in texts_without_code(prompts, codes, tokenizer):
            print_on_host0(
                f"warning: prompt {text!r:.40} has no control code; the training text names {', '.join(codes)}"
            )


def streams(arguments: Generate, prompts) -> bool:
    """Whether to print tokens as they come: one sampled continuation, on a terminal."""
    return (
        jax.process_index() == 0
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
