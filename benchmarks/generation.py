"""Generation of GPT-2 small and T5-small on a CPU, greedy and with 4 beams, against Hugging Face's `generate`.

    python -m benchmarks.generation [--quick] [--format=json] [--memory=kept|returned]

4 prompts of 64 tokens, 64 new tokens each without an end token, float32, random weights, key-value caches on both
sides. Beams are normalised by length and stop as with early_stopping=False. Ours is `pretrain generate`'s function.
Each side runs in a process of its own, in turns (turns.py). `--quick` writes 16 tokens for 2 prompts of 16.
"""

import os
import statistics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report, turns
from configs import gpt2, t5

MODELS = {"GPT-2 small": (gpt2, "small"), "T5-small": (t5, "small")}
SIZES = {False: (4, 64, 64), True: (2, 16, 16)}  # by --quick: prompts, their tokens, new tokens
BEAMS = {"greedy": 1, "beams": 4}


def section(name: str) -> dict:
    """Our `model` section."""
    recipe, variant = MODELS[name]
    return recipe.get_config(variant).model.to_dict() | {"dtype": "float32", "attention_path": "auto"}


def prompts(name: str, quick: bool) -> np.ndarray:
    """Ids of the prompts, int32 [prompts, tokens]."""
    rows, length, _ = SIZES[quick]
    return np.random.default_rng(0).integers(3, 30_000, (rows, length)).astype(np.int32)


def longhaul(name: str, quick: bool):
    """Our functions, which return the number of new tokens."""
    import jax
    from flax import linen as nn

    import models
    from pretrain.decoding.sampling import generate
    from pretrain.distributed.init import keep_freed_memory

    keep_freed_memory()
    model, read = models.build(section(name)), prompts(name, quick)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), **model.example()))["params"]
    prefixes, source = list(read), None
    if "inputs" in model.inputs:
        prefixes = [np.zeros(1, np.int32)] * len(read)
        source = {"inputs": read, "input_segments": np.ones_like(read)}

    def search(beams):
        def run(times):
            for _ in range(times):
                texts = generate(
                    model,
                    params,
                    prefixes,
                    max_tokens=SIZES[quick][2],
                    temperature=0.0,
                    beams=beams,
                    length_penalty=1.0,
                    normalisation="length",
                    stopping="best",
                    end_id=None,
                    vocabulary=model.vocab_size,
                    source=source,
                )
            return sum(len(ids) for ids, _ in texts)

        return run

    return {name: search(beams) for name, beams in BEAMS.items()}


def hugging_face(name: str, quick: bool):
    """The same for the class that our model is exported to."""
    torch, transformers = report.peers("torch", "transformers")
    from pretrain.interop import families

    transformers.logging.set_verbosity_error()
    family, keys = families.of_section(section(name))
    model = getattr(transformers, family.architecture(section(name)))(
        transformers.AutoConfig.for_model(family.model_type, **keys)
    ).eval()
    model.generation_config.eos_token_id = None
    read = torch.from_numpy(prompts(name, quick)).long()
    more = {"attention_mask": torch.ones_like(read), "pad_token_id": 0, "max_new_tokens": SIZES[quick][2]}
    more |= {"decoder_start_token_id": 0} if model.config.is_encoder_decoder else {}

    def search(beams):
        options = {"num_beams": beams, "length_penalty": 1.0, "early_stopping": False} if beams > 1 else {}

        def run(times):
            for _ in range(times):
                with torch.inference_mode():
                    ids = model.generate(read, do_sample=False, **more, **options)
            prefix = 1 if model.config.is_encoder_decoder else read.shape[1]
            return (ids.shape[1] - prefix) * len(ids)

        return run

    return {name: search(beams) for name, beams in BEAMS.items()}


def compare(name: str, args) -> tuple[list[report.Result], dict[str, str]]:
    """Results of one model, and the versions of the packages."""
    rows, rounds = [], 3 if args.quick else 7
    prompts, _, new = SIZES[args.quick]
    tokens, options = prompts * new, {"name": name, "quick": args.quick}
    programs = {
        "longhaul": turns.Program("benchmarks.generation:longhaul", "ours", args.memory, **options),
        "hugging face": turns.Program("benchmarks.generation:hugging_face", "peer", args.memory, **options),
    }
    for way in BEAMS:
        results = turns.take_turns(programs, way, rounds, 1)
        assert all(own[-1].value == tokens for own in results.values()), "a program wrote another number of tokens"
        results = {f"{name}, {way}, {who}": own for who, own in results.items()}
        rows += turns.compare(results, f"{name}, {way}, longhaul", "tokens/s", tokens, 2.0)[:2]
        for who, own in results.items():
            processor = statistics.median(turn.processor for turn in own)
            rows.append(report.Result(who, processor * 1e3 / tokens, "ms of processor time a token"))
    for program in programs.values():
        program.end()
    return rows, turns.versions(programs)


def main():
    args = turns.arguments(__doc__).parse_args()
    rows, versions = [], {}
    for name in MODELS:
        more, loaded = compare(name, args)
        rows, versions = rows + more, versions | loaded
    report.show(rows, args, {name: section(name) for name in MODELS} | {"memory": args.memory}, versions)


if __name__ == "__main__":
    main()
