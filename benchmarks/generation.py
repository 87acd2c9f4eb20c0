"""Text of GPT-2 small and of T5-small on a CPU, greedy and by 4 beams, against Hugging Face's `generate`.

    python -m benchmarks.generation [--quick] [--format=json] [--memory=kept|returned]

Both keep keys and values of what was read. 4 prompts of 64 tokens each; 64 tokens are written for each, whichever they
are: nothing ends a text. Float32, random weights, no dropout. Beams count by length and stop as there with
early_stopping off, on both sides. Ours is `pretrain.decoding.sampling.generate`, what `pretrain generate` calls. Each
program runs in a process of its own, on all cores, and they take turns (turns.py). `--quick` writes 16 tokens for 2
prompts of 16, in fewer rounds.
"""

import os
import statistics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report, turns
from configs import gpt2, t5

MODELS = {"GPT-2 small": (gpt2, "small"), "T5-small": (t5, "small")}
SIZES = {False: (4, 64, 64), True: (2, 16, 16)}  # by --quick: prompts, tokens of each, tokens that are written
WAYS = {"greedy": 1, "beams": 4}


def section(name: str) -> dict:
    """The `model` section of ours."""
    recipe, variant = MODELS[name]
    return recipe.get_config(variant).model.to_dict() | {"dtype": "float32", "attention_path": "auto"}


def prompts(name: str, quick: bool) -> np.ndarray:
    """The ids that both read, int32 [prompts, tokens]."""
    rows, length, _ = SIZES[quick]
    return np.random.default_rng(0).integers(3, 30_000, (rows, length)).astype(np.int32)


def longhaul(name: str, quick: bool):
    """What `generate` writes."""
    import jax
    from flax import linen as nn

    import models
    from pretrain.decoding.sampling import generate
    from pretrain.distributed.init import keep_freed_memory

    keep_freed_memory()
    model, read = models.build(section(name)), prompts(name, quick)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), **model.example()))["params"]
    begun, source = list(read), None
    if "inputs" in model.inputs:
        begun = [np.zeros(1, np.int32)] * len(read)
        source = {"inputs": read, "input_segments": np.ones_like(read)}

    def way(beams):
        def run(times):
            for _ in range(times):
                texts = generate(
                    model,
                    params,
                    begun,
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

    return {name: way(beams) for name, beams in WAYS.items()}


def hugging_face(name: str, quick: bool):
    """What the class writes that our model is exported as."""
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

    def way(beams):
        searched = {"num_beams": beams, "length_penalty": 1.0, "early_stopping": False} if beams > 1 else {}

        def run(times):
            for _ in range(times):
                with torch.inference_mode():
                    ids = model.generate(read, do_sample=False, **more, **searched)
            begun = 1 if model.config.is_encoder_decoder else read.shape[1]
            return (ids.shape[1] - begun) * len(ids)

        return run

    return {name: way(beams) for name, beams in WAYS.items()}


def compared(name: str, args) -> tuple[list[report.Result], dict[str, str]]:
    """Rows of one model, each way of writing, and the versions of what they are of."""
    rows, rounds = [], 3 if args.quick else 7
    tokens = SIZES[args.quick][0] * SIZES[args.quick][2]
    options = {"name": name, "quick": args.quick}
    programs = {
        "longhaul": turns.Program("benchmarks.generation:longhaul", "ours", args.memory, **options),
        "hugging face": turns.Program("benchmarks.generation:hugging_face", "peer", args.memory, **options),
    }
    for way in WAYS:
        taken = turns.take_turns(programs, way, rounds, 1)
        for who, those in taken.items():
            if those[-1].value != tokens:
                raise RuntimeError(f"{name}, {way}: {who} wrote {those[-1].value:.0f} tokens and was to write {tokens}")
        found = {f"{name}, {way}, {who}": those for who, those in taken.items()}
        rows += turns.compare(found, f"{name}, {way}, longhaul", "tokens/s", tokens, 2.0)[:2]
        for who, those in found.items():
            processor = statistics.median(turn.processor for turn in those)
            rows.append(report.Result(who, processor * 1e3 / tokens, "ms of processor time a token"))
    for program in programs.values():
        program.end()
    return rows, turns.versions(programs)


def main():
    args = turns.arguments(__doc__).parse_args()
    rows, versions = [], {}
    for name in MODELS:
        more, loaded = compared(name, args)
        rows, versions = rows + more, versions | loaded
    report.show(rows, args, {name: section(name) for name in MODELS} | {"memory": args.memory}, versions)


if __name__ == "__main__":
    main()
