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

from benchmarks import report, turns
from configs import gpt2
from pretrain.costs.flops import flops_per_token

NO_DROPOUT = dict.fromkeys(("dropout_embedding", "dropout_attention", "dropout_residual", "dropout_ff"), 0.0)
BATCH, LENGTH, WIDTH = 8, 256, 384


def config():
    """Our config."""
    c = gpt2.get_config("small")
    c.model.update(NO_DROPOUT | {"vocab_size": 8192, "context": LENGTH, "layers": 6, "width": WIDTH, "heads": 6})
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


def random_batch(c) -> dict[str, np.ndarray]:
    """The same ids as a batch of ours."""
    tokens = random_tokens(c)
    ones = np.ones_like(tokens[:, 1:])
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": ones.astype(np.float32), "segments": ones}
    positions = np.tile(np.arange(c.data.length, dtype=np.int32), (len(tokens), 1))
    return batch | {"positions": positions, "row": np.arange(len(tokens), dtype=np.int32)}


def peer_model(c):
    """Hugging Face's GPT-2 of a config's size, without dropout."""
    (transformers,) = report.peers("transformers")
    m = c.model
    sizes = {"vocab_size": m.vocab_size, "n_positions": m.context, "n_embd": m.width, "n_layer": m.layers}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    settings = transformers.GPT2Config(**sizes, n_head=m.heads, **rates, use_cache=False)
    return transformers.GPT2LMHeadModel(settings).train()


def peer_loss(logits, tokens):
    """Cross-entropy of the next tokens."""
    import torch

    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def longhaul():
    """An update, the forward pass, both passes, and the matrix-product ceiling in FLOP/s."""
    import jax

    from pretrain.distributed.init import keep_freed_memory
    from pretrain.losses.objective import BoundModel
    from pretrain.step.train_spec import TrainSpec

    keep_freed_memory()
    c = config()
    spec = TrainSpec.build(c, jax.devices()[:1])
    state = spec.init(0, BATCH)
    data = spec.put(random_batch(c), BATCH)
    params = jax.tree.map(lambda p: p.copy(), state.params)  # the step donates its own

    def loss(params, batch):
        return spec.objective.score(BoundModel(spec.model, params, spec.inputs), batch, {}, None)[0]["loss"]

    def step(times):
        nonlocal state
        for _ in range(times):
            state, metrics = spec.train_step(state, data)
            nll = float(metrics["sums"]["loss"])
        return nll

    def repeat(run):
        return lambda times: [jax.block_until_ready(run(params, data)) for _ in range(times)] and None

    def ceiling(times):
        return report.measure_matmul_ceiling("float32", size=2048, repeats=5)

    forward, both = repeat(jax.jit(loss)), repeat(jax.jit(jax.grad(loss)))
    return {"step": step, "forward": forward, "both": both, "ceiling": ceiling}


def hugging_face(compiled: bool):
    """An update of GPT2LMHeadModel with AdamW and clipping."""
    (torch,) = report.peers("torch")
    torch.manual_seed(0)
    model = peer_model(config())
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    tokens = torch.from_numpy(random_tokens(config())).long()

    def step(times):
        for _ in range(times):
            loss = peer_loss(run(input_ids=tokens[:, :-1]).logits, tokens)
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
