"""The training step of a small GPT-2 on a CPU, against Hugging Face's GPT-2 in PyTorch, eager and compiled.

    python -m benchmarks.train_step [--quick] [--format=json] [--memory=kept|returned]

6 layers, width 384, 6 heads, 8,192 tokens of vocabulary, context 256, batch 8, float32, AdamW, gradient
clipping at 1, dropout off on both sides. Each runs in a process of its own, on all cores, the same batch over and
over; they take turns (turns.py). Also printed: the same in processor time, the share of the measured float32
matrix-product ceiling, and where the time goes.
"""

import os
import statistics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report, turns
from configs import gpt2
from pretrain.costs.flops import flops_per_token

BATCH, LENGTH, VOCAB, LAYERS, WIDTH, HEADS = 8, 256, 8192, 6, 384, 6
TARGET = 1.5


def config():
    """Our side's config."""
    c = gpt2.get_config("small")
    c.model.update(
        vocab_size=VOCAB, context=LENGTH, layers=LAYERS, width=WIDTH, heads=HEADS, ff=4 * WIDTH, dtype="float32"
    )
    c.model.update(
        dropout_embedding=0.0, dropout_attention=0.0, dropout_residual=0.0, dropout_ff=0.0, remat="none", scan=False
    )
    c.data.length = LENGTH
    c.train.update(batch_size=BATCH, accumulate=1)
    c.optimizer.update(name="adamw", clip=1.0, weight_decay=0.1)
    c.mesh.data = 1
    return c


def batch():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (BATCH, LENGTH + 1), dtype=np.int32)
    return {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": np.ones((BATCH, LENGTH), np.float32),
        "segments": np.ones((BATCH, LENGTH), np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1)),
        "row": np.arange(BATCH, dtype=np.int32),
    }


def longhaul():
    """An update, the forward pass, both passes, and the matrix-product ceiling in FLOP/s."""
    import jax

    from benchmarks.ceiling import measure_matmul_ceiling
    from pretrain.distributed.init import keep_freed_memory
    from pretrain.losses.objective import BoundModel
    from pretrain.step.train_spec import TrainSpec

    keep_freed_memory()
    c = config()
    spec = TrainSpec.build(c, jax.devices()[:1])
    state = spec.init(0, BATCH)
    data = spec.put(batch(), BATCH)
    params = jax.tree.map(lambda p: p.copy(), state.params)

    def loss(params, rows):
        return spec.objective.score(BoundModel(spec.model, params, spec.inputs), rows, {}, None)[0]["loss"]

    one, both = jax.jit(loss), jax.jit(jax.grad(loss))

    def step(times):
        nonlocal state
        for _ in range(times):
            state, metrics = spec.train_step(state, data)
            nll = float(metrics["sums"]["loss"])
        return nll

    def passes(run):
        return lambda times: [jax.block_until_ready(run(params, data)) for _ in range(times)] and None

    def ceiling(times):
        return measure_matmul_ceiling("float32", size=2048, repeats=5)

    return {"step": step, "forward": passes(one), "both": passes(both), "ceiling": ceiling}


def hugging_face(compiled: bool):
    """An update of GPT2LMHeadModel with AdamW and clipping."""
    torch, transformers = report.peers("torch", "transformers")
    torch.manual_seed(0)
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": VOCAB, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, use_cache=False)).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    data = batch()
    tokens = torch.from_numpy(np.concatenate([data["tokens"], data["targets"][:, -1:]], 1)).long()

    def step(times):
        for _ in range(times):
            logits = run(input_ids=tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            nll = float(loss.detach())
        return nll

    return {"step": step}


def main():
    from pretrain.step.train_spec import TrainSpec

    args = turns.arguments(__doc__).parse_args()
    rounds, times = (5, 1) if args.quick else (9, 3)
    ours = turns.Program("benchmarks.train_step:longhaul", "ours", args.memory)
    programs = {"longhaul": ours}
    for compiled in (False,) if args.quick else (False, True):
        name = f"hugging face {'compiled' if compiled else 'eager'}"
        programs[name] = turns.Program("benchmarks.train_step:hugging_face", "peer", args.memory, compiled=compiled)
    taken = turns.take_turns(programs, "step", rounds, times, warmup=3)
    part = {
        name: statistics.median(turn.seconds for turn in turns.take_turns({"": ours}, name, rounds // 2 + 1, 1)[""])
        for name in ("forward", "both", "step")
    }
    ceiling = ours.turn("ceiling").value
    c, tokens = config(), BATCH * LENGTH
    seconds = {name: statistics.median(turn.seconds for turn in taken[name]) for name in taken}
    rows = turns.compare(taken, "longhaul", "tokens/s", tokens, TARGET)
    rows += [
        report.Result(
            "longhaul, share of the float32 ceiling",
            tokens * flops_per_token(TrainSpec.build_abstract(c), LENGTH)["causal"] / seconds["longhaul"] / ceiling,
            "",
            "causal FLOPs",
        ),
        report.Result("measured float32 ceiling", ceiling / 1e9, "GFLOP/s"),
        report.Result("forward", part["forward"] * 1e3, "ms"),
        report.Result("backward", (part["both"] - part["forward"]) * 1e3, "ms"),
        report.Result("clipping and optimiser", (part["step"] - part["both"]) * 1e3, "ms"),
    ]
    report.show(rows, args, {"memory": args.memory, **c.to_dict()}, turns.versions(programs))


if __name__ == "__main__":
    main()
