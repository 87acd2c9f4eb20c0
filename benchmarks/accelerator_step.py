"""The training step of GPT-2 on one accelerator in bfloat16, against Hugging Face with torch.compile on the same card.

    python -m benchmarks.accelerator_step --size small --batch 32 [--format=json]
    python -m benchmarks.accelerator_step --size xl --batch 8 --remat full

Context 1,024, AdamW, clipping at 1, no dropout on either side. Prints tokens/s, the share of the measured bfloat16
ceiling (MFU, full and causal convention), and peak memory. Aims: 50 % for small, 60 % for xl. The peer needs a CUDA
build of PyTorch; where there is none it is left out, and said so. `--size smoke` checks the script anywhere.
"""

import os
import statistics

# Half of the card is left to the peer: both sides stay loaded while they take turns.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")

import jax
import numpy as np

from benchmarks import report
from benchmarks.ceiling import measure_matmul_ceiling
from configs import gpt2
from models.layers.remat import REMAT
from pretrain.costs.flops import flops_per_token
from pretrain.step.train_spec import TrainSpec

AIMS = {"small": 0.5, "medium": 0.5, "large": 0.6, "xl": 0.6, "smoke": None}


def config(size: str, batch: int, remat: str):
    """Our side: the published GPT-2 of that size, in bfloat16, without dropout."""
    c = gpt2.get_config("small" if size == "smoke" else size)
    c.model.update(dict.fromkeys(("dropout_embedding", "dropout_attention", "dropout_residual", "dropout_ff"), 0.0))
    c.model.update(dtype="bfloat16", remat=remat)
    if size == "smoke":
        c.model.update(layers=2, width=64, heads=2, ff=256, vocab_size=512, context=64)
    c.data.length = c.model.context
    c.train.update(batch_size=batch, accumulate=1)
    c.optimizer.update(name="adamw", clip=1.0, weight_decay=0.1)
    c.mesh.data = 1
    return c


def rows(c):
    """Random tokens [B, T + 1]."""
    shape = (c.train.batch_size, c.data.length + 1)
    return np.random.default_rng(0).integers(0, c.model.vocab_size, shape, dtype=np.int32)


def longhaul(c, updates: int):
    """A function that makes `updates` updates and waits for the last."""
    spec = TrainSpec.build(c, jax.devices()[:1])
    tokens, size = rows(c), c.train.batch_size
    ones = np.ones(tokens[:, 1:].shape, np.int32)
    positions = np.broadcast_to(np.arange(c.data.length, dtype=np.int32), ones.shape)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "segments": ones, "positions": positions}
    batch["row"] = np.arange(len(tokens), dtype=np.int32)
    data = spec.put(batch | {"weights": ones.astype(np.float32)}, size)
    state = spec.init(0, size)

    def run():
        nonlocal state
        for _ in range(updates):
            state, metrics = spec.train_step(state, data)
        jax.block_until_ready(metrics)

    return run


def hugging_face(c, updates: int):
    """The same updates with GPT2LMHeadModel under torch.compile and autocast to bfloat16."""
    torch, transformers = report.peers("torch", "transformers")
    m = c.model
    sizes = {"vocab_size": m.vocab_size, "n_positions": m.context, "n_embd": m.width, "n_layer": m.layers}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.set_float32_matmul_precision("high")
    model = (
        transformers.GPT2LMHeadModel(transformers.GPT2Config(n_head=m.heads, use_cache=False, **sizes, **rates))
        .cuda()
        .train()
    )
    if m.remat != "none":
        model.gradient_checkpointing_enable()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    tokens = torch.from_numpy(rows(c)).long().cuda()

    def run():
        for _ in range(updates):
            with torch.autocast("cuda", torch.bfloat16):
                logits = compiled(input_ids=tokens[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(logits.reshape(-1, m.vocab_size), tokens[:, 1:].reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    return run


def peer_is_there() -> bool:
    """Whether PyTorch can use the same card."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--size", choices=tuple(AIMS), default="small")
    parser.add_argument("--batch", type=report.count, default=32, help="rows of 1,024 tokens")
    parser.add_argument("--remat", choices=REMAT, default="none", help="config.model.remat")
    args = parser.parse_args()
    updates, rounds = (2, 3) if args.quick or args.size == "smoke" else (10, 7)
    c = config(args.size, args.batch, args.remat)
    runs = {"longhaul": longhaul(c, updates)}
    if peer_is_there():
        runs["hugging face compiled"] = hugging_face(c, updates)
    times = report.interleave(runs, rounds, warmup=2)
    tokens = updates * args.batch * c.data.length
    speed = {name: tokens / statistics.median(seconds) for name, seconds in times.items()}
    flops = flops_per_token(TrainSpec.build_abstract(c), c.data.length)
    ceiling = measure_matmul_ceiling("bfloat16", size=256 if args.size == "smoke" else 8192, repeats=10)
    result = [report.Result(f"gpt2 {args.size}", speed["longhaul"], "tokens/s")]
    if len(runs) == 2:
        ratio, spread = report.ratio(times["longhaul"], times["hugging face compiled"])
        result[0].against, result[0].ratio, result[0].spread = "hugging face compiled", ratio, spread
        result.append(report.Result("hugging face compiled", speed["hugging face compiled"], "tokens/s"))
    else:
        print("hugging face left out: PyTorch has no CUDA device here")
    result += [
        report.Result(f"MFU, {name} convention", speed["longhaul"] * flops[name] / ceiling, "", target=AIMS[args.size])
        for name in ("full", "causal")
    ]
    result.append(report.Result("measured bfloat16 ceiling", ceiling / 1e12, "TFLOP/s"))
    memory = jax.devices()[0].memory_stats()
    if memory:
        result.append(report.Result("peak memory", memory["peak_bytes_in_use"] / 2**30, "GiB"))
    report.show(result, args, c.to_dict())


if __name__ == "__main__":
    report.run(main)
