"""Training step of a small GPT-2 on a CPU, against Hugging Face's GPT-2 in PyTorch, eager and compiled.

    python -m benchmarks.train_step [--quick] [--format=json] [--memory=kept|returned]

6 layers, width 384, 6 heads, vocabulary 8,192, context 256, batch 8, float32, AdamW, clipping at 1, no dropout. Each
side repeats one batch on all cores in a process of its own, in turns (turns.py). Also: processor time, the share of the
measured float32 matrix-product ceiling, and the time of forward, backward and optimizer.
"""

import os
import statistics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report, steps, turns
from configs import gpt2
from pretrain.costs.flops import flops_per_token

BATCH, LENGTH, WIDTH = 8, 256, 384


def config():
    """Our config."""
    c = gpt2.get_config("small")
    c.model.update(steps.NO_DROPOUT | {"vocab_size": 8192, "context": LENGTH, "layers": 6, "width": WIDTH, "heads": 6})
    c.model.update(ff=4 * WIDTH, dtype="float32", remat="none", scan=False)
    c.data.length = LENGTH
    c.train.update(batch_size=BATCH, accumulate=1)
    c.optimizer.update(name="adamw", clip=1.0, weight_decay=0.1)
    c.mesh.data = 1
    return c


def random_tokens(c) -> np.ndarray:
    """Random ids [B, T + 1] for a config."""
    shape = (c.train.batch_size, c.data.length + 1)
    return np.random.default_rng(0).integers(0, c.model.vocab_size, shape, dtype=np.int32)


def longhaul():
    """An update, the forward pass, both passes, and the matrix-product ceiling in FLOP/s."""
    import jax
    import jax.numpy as jnp

    from pretrain.distributed.init import keep_freed_memory
    from pretrain.losses.objective import BoundModel
    from pretrain.step.train_spec import TrainSpec

    keep_freed_memory()
    spec = TrainSpec.build(config(), jax.devices()[:1])
    batch = steps.random_batch(spec, BATCH, LENGTH)
    params, data = spec.init(0, BATCH).params, spec.put(batch, BATCH)
    update = steps.updates(spec, batch, BATCH)

    def loss(params, batch):
        return spec.objective.score(BoundModel(spec.model, params, spec.inputs), batch, {}, None)[0]["loss"]

    def repeat(run):
        return lambda times: [jax.block_until_ready(run(params, data)) for _ in range(times)] and None

    a, b = jax.random.normal(jax.random.key(0), (2, 2048, 2048), "float32")
    product = jax.jit(jnp.matmul)

    def ceiling(times):
        """FLOP/s of products of two large matrices: no program is faster."""
        times = report.interleave({"": lambda: product(a, b).block_until_ready()}, 5)[""]
        return 2 * len(a) ** 3 / statistics.median(times)

    forward, both = repeat(jax.jit(loss)), repeat(jax.jit(jax.grad(loss)))
    return {
        "step": lambda times: float(update(times)["sums"]["loss"]),
        "forward": forward,
        "both": both,
        "ceiling": ceiling,
    }


def hugging_face(compiled: bool):
    """An update of GPT2LMHeadModel with AdamW and clipping."""
    torch, transformers = report.peers("torch", "transformers")
    torch.manual_seed(0)
    c = config()
    m = c.model
    sizes = {"vocab_size": m.vocab_size, "n_positions": m.context, "n_embd": m.width, "n_layer": m.layers}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    settings = transformers.GPT2Config(**sizes, n_head=m.heads, **rates, use_cache=False)
    model = transformers.GPT2LMHeadModel(settings).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    ids = np.random.default_rng(0).integers(0, m.vocab_size, (BATCH, LENGTH + 1))
    inputs, targets = (torch.from_numpy(part).contiguous() for part in (ids[:, :-1], ids[:, 1:]))

    def loss():
        logits = run(input_ids=inputs).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return {"step": steps.torch_updates(loss, model.parameters(), optimizer)}


def main():
    from pretrain.step.train_spec import TrainSpec

    args = turns.arguments(__doc__).parse_args()
    rounds, times = (5, 1) if args.quick else (9, 3)
    ours = turns.Program("benchmarks.train_step:longhaul", "ours", args.memory)
    programs = {"longhaul": ours}
    for compiled in (False,) if args.quick else (False, True):
        name = f"hugging face {'compiled' if compiled else 'eager'}"
        programs[name] = turns.Program("benchmarks.train_step:hugging_face", "peer", args.memory, compiled=compiled)
    results = turns.take_turns(programs, "step", rounds, times, warmup=3)
    part = {
        name: statistics.median(turn.seconds for turn in turns.take_turns({"": ours}, name, rounds // 2 + 1, 1)[""])
        for name in ("forward", "both", "step")
    }
    ceiling = ours.turn("ceiling").value
    c, tokens = config(), BATCH * LENGTH
    seconds = statistics.median(turn.seconds for turn in results["longhaul"])
    flops = tokens * flops_per_token(TrainSpec.build_abstract(c), LENGTH)["causal"]
    share = flops / seconds / ceiling
    rows = turns.compare(results, "longhaul", "tokens/s", tokens, target=1.5)
    rows += [
        report.Result("longhaul, share of the float32 ceiling", share, "", "causal FLOPs"),
        report.Result("measured float32 ceiling", ceiling / 1e9, "GFLOP/s"),
        report.Result("forward", part["forward"] * 1e3, "ms"),
        report.Result("backward", (part["both"] - part["forward"]) * 1e3, "ms"),
        report.Result("clipping and optimiser", (part["step"] - part["both"]) * 1e3, "ms"),
    ]
    report.show(rows, args, {"memory": args.memory, **c.to_dict()}, turns.versions(programs))


if __name__ == "__main__":
    main()
