"""The training step of a small GPT-2 on a CPU, against Hugging Face's GPT-2 in PyTorch, eager and compiled.

    python -m benchmarks.train_step [--quick] [--format=json]

6 layers, width 384, 6 heads, 8,192 tokens of vocabulary, context 256, batch 8, float32, AdamW, gradient
clipping at 1, dropout off on both sides. All run in turn in one process, on all cores, the same batch over and
over. Also printed: the share of the measured float32 matrix-product ceiling, and where the time goes.
"""

import os
import statistics

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from benchmarks import report
from configs import gpt2
from pretrain.devices import measure_matmul_ceiling
from pretrain.engine import make_engine
from pretrain.flops import flops_per_token
from pretrain.recipe import make_recipe
from pretrain.step import loss_sums

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
    }


def longhaul(c):
    """(a function that makes one update and waits for it, one that runs the forward pass, one for both passes)."""
    engine = make_engine(make_recipe(c), c, jax.devices()[:1])
    state = engine.init(0, BATCH)
    data = engine.put(batch(), BATCH)

    def step():
        nonlocal state
        state, metrics = engine.step(state, data)
        return float(metrics["nll"])

    params = jax.tree.map(lambda p: p.copy(), state.params)
    forward = jax.jit(lambda p, b: loss_sums(engine.recipe, p, b, {}, None)[0])
    both = jax.jit(jax.grad(lambda p, b: loss_sums(engine.recipe, p, b, {}, None)[0]))
    return step, lambda: forward(params, data).block_until_ready(), lambda: jax.block_until_ready(both(params, data))


def hugging_face(compiled: bool):
    """One update of GPT2LMHeadModel with AdamW and clipping."""
    torch, transformers = report.peers("torch", "transformers")
    torch.manual_seed(0)
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": VOCAB, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, use_cache=False)).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    data = batch()
    tokens = torch.from_numpy(np.concatenate([data["tokens"], data["targets"][:, -1:]], 1)).long()

    def step():
        logits = run(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def main():
    args = report.arguments(__doc__.split("\n")[0]).parse_args()
    rounds = 5 if args.quick else 7
    c = config()
    step, forward, both = longhaul(c)
    runs = {"longhaul": step, "hugging face eager": hugging_face(False)}
    if not args.quick:
        runs["hugging face compiled"] = hugging_face(True)
    times = report.interleaved(runs, rounds, warmup=3)
    parts = report.interleaved({"forward": forward, "both": both, "step": step}, rounds)
    ceiling = measure_matmul_ceiling("float32", size=2048, repeats=5)
    tokens, flops = BATCH * LENGTH, flops_per_token(c)["causal"]
    ours = statistics.median(times["longhaul"])
    peers = {name: statistics.median(t) for name, t in times.items() if name != "longhaul"}
    best = min(peers, key=peers.get)
    median, spread = report.ratio(times["longhaul"], times[best])
    part = {name: statistics.median(t) for name, t in parts.items()}
    rows = [report.Result("longhaul", tokens / ours, "tokens/s", best, median, TARGET, spread)]
    rows += [report.Result(name, tokens / t, "tokens/s") for name, t in peers.items()]
    rows += [
        report.Result("longhaul, share of the float32 ceiling", tokens * flops / ours / ceiling, "", "causal FLOPs"),
        report.Result("measured float32 ceiling", ceiling / 1e9, "GFLOP/s"),
        report.Result("forward", part["forward"] * 1e3, "ms"),
        report.Result("backward", (part["both"] - part["forward"]) * 1e3, "ms"),
        report.Result("clipping and optimiser", (part["step"] - part["both"]) * 1e3, "ms"),
    ]
    report.show(rows, args, c.to_dict())


if __name__ == "__main__":
    main()
