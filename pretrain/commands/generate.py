"""`pretrain generate`: continues prompts with a checkpoint of a work folder."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from pretrain.decoding.decoding import generate as decode
from pretrain.errors import UserError
from pretrain.run import Run


def generate(config, workdir: str, flags) -> None:
    """Continues the prompts that `flags` give, with a model of `config`, which `workdir` holds."""
    if config.data.image:
        raise UserError(
            f"{workdir} was trained on images, which no prompt begins; give --complete=FILE.png to fill in the lower "
            "part of some"
        )
    refuse(flags, ("images", "rows", "samples", "keep"), "goes with --complete=FILE.png")
    prompts = read_prompts(flags)
    run = Run(workdir, flags.step, jax.local_devices()[:1])
    tokenizer, step = run.tokenizer, run.step
    begun, source, continued = run.prompts(prompts)
    shown = prompts if continued else [""] * len(prompts)  # in front of what is written
    stream = Stream(tokenizer, shown[0], begun[0]) if streams(flags, prompts) else None
    temperature = flags.temperature if flags.temperature is not None else 0.8 if flags.beams == 1 else 0.0
    results = decode(
        run.model,
        run.local_params,
        begun,
        max_tokens=flags.max_tokens,
        temperature=temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
        beams=flags.beams,
        length_penalty=flags.length_penalty,
        end_id=tokenizer.end_id,
        vocabulary=tokenizer.vocab_size,
        seed=flags.seed,
        source=source,
        cached=flags.cached,
        on_token=stream,
    )
    if jax.process_index() != 0:  # all have decoded the same
        return
    texts = [
        tokenizer.continuation(before, ids, head) for head, before, (ids, _) in zip(shown, begun, results, strict=True)
    ]
    if stream:
        stream.close()
    elif flags.format == "json":
        for prompt, text, (ids, score) in zip(prompts, texts, results, strict=True):
            row = {"step": step, "prompt": prompt, "text": text, "tokens": len(ids), "log_probability": float(score)}
            print(json.dumps(row))
    else:
        print("\n\n".join(head + text for head, text in zip(shown, texts, strict=True)))


def refuse(flags, names: Sequence[str], reason: str) -> None:
    """Raises UserError where one of the flags `names` was given."""
    for name in names:
        if flags[name].present:
            raise UserError(f"--{name} {reason}; leave it out")


def read_prompts(flags) -> list[str]:
    """The prompts of --prompt and --prompt_file; one empty prompt where there are none."""
    prompts = list(flags.prompt)
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:  # bytes of the command line that Python could not decode
            raise UserError(f"--prompt={prompt!a:.60} is not UTF-8; write it in UTF-8") from error
    if flags.prompt_file:
        try:
            prompts += Path(flags.prompt_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--prompt_file={flags.prompt_file} cannot be read ({error}); give a UTF-8 text file"
            ) from error
    return prompts or [""]


def streams(flags, prompts) -> bool:
    """Whether tokens are shown as they come: one sampled continuation, on a terminal."""
    return (
        jax.process_index() == 0
        and sys.stdout.isatty()
        and flags.format == "table"
        and len(prompts) == 1
        and flags.beams == 1
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
