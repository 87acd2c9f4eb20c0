"""Training step of GPT-2 on one accelerator in bfloat16, against Hugging Face with torch.compile on the same card.

    python -m benchmarks.accelerator_step --size small --batch 32 [--format=json]
    python -m benchmarks.accelerator_step --size xl --batch 8 --remat full

Context 1,024, AdamW, clipping at 1, no dropout. Prints tokens/s, MFU against the measured bfloat16 ceiling (full and
causal FLOPs), and peak memory. Targets: 50 % for small, 60 % for xl. The peer needs a CUDA build of PyTorch and is
skipped without one. `--size smoke` runs on any machine.
"""

import os
import statistics
import sys

# Half of the card is left to the peer: both sides stay loaded while they alternate.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")

import jax

from benchmarks import report
from benchmarks.train_step import NO_DROPOUT, peer_loss, peer_model, random_batch, random_tokens
from configs import gpt2
from models.layers.remat import REMAT
from pretrain.costs.flops import flops_per_token
from pretrain.step.train_spec import TrainSpec

TARGETS = {"small": 0.5, "medium": 0.5, "large": 0.6, "xl": 0.6, "smoke": None}


def build_config(size: str, batch: int, remat: str):
    """The published GPT-2 of a size, in bfloat16, without dropout."""
    c = gpt2.get_config("small" if size == "smoke" else size)
    c.model.update(NO_DROPOUT | {"dtype": "bfloat16", "remat": remat})
    if size == "smoke":
        c.model.update(layers=2, width=64, heads=2, ff=256, vocab_size=512, context=64)
    c.data.length = c.model.context
    c.train.update(batch_size=batch, accumulate=1)
    c.optimizer.update(name="adamw", clip=1.0, weight_decay=0.1)
    c.mesh.data = 1
    return c


def longhaul(c, updates: int):
    """Function that makes `updates` updates and waits."""
    spec = TrainSpec.build(c, jax.devices()[:1])
    size = c.train.batch_size
    data, state = spec.put(random_batch(c), size), spec.init(0, size)

    def run():
        nonlocal state
        for _ in range(updates):
            state, metrics = spec.train_step(state, data)
        jax.block_until_ready(metrics)

    return run


def hugging_face(c, updates: int):
    """The same updates with GPT2LMHeadModel under torch.compile and autocast to bfloat16."""
    (torch,) = report.peers("torch")
    torch.set_float32_matmul_precision("high")
    model = peer_model(c).cuda()
    if c.model.remat != "none":
        model.gradient_checkpointing_enable()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    tokens = torch.from_numpy(random_tokens(c)).long().cuda()

    def run():
        for _ in range(updates):
            with torch.autocast("cuda", torch.bfloat16):
                loss = peer_loss(compiled(input_ids=tokens[:, :-1]).logits, tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    return run


def has_cuda_torch() -> bool:
    """Whether PyTorch can use this card."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--size", choices=tuple(TARGETS), default="small")
    parser.add_argument("--batch", type=report.count, default=32, help="rows of 1,024 tokens")
    parser.add_argument("--remat", choices=REMAT, default="none", help="config.model.remat")
    args = parser.parse_args()
    updates, rounds = (2, 3) if args.quick or args.size == "smoke" else (10, 7)
    c = build_config(args.size, args.batch, args.remat)
    runs, peer = {"longhaul": longhaul(c, updates)}, "hugging face compiled"
    if has_cuda_torch():
        runs[peer] = hugging_face(c, updates)
    else:
        print("no peer: PyTorch has no CUDA device here", file=sys.stderr)
    times = report.interleave(runs, rounds, warmup=2)
    speed = {name: updates * args.batch * c.data.length / statistics.median(s) for name, s in times.items()}
    rows = [report.Result(name, value, "tokens/s") for name, value in speed.items()]
    if peer in times:
        value = speed["longhaul"]
        name, pair = f"gpt2 {args.size}", (times["longhaul"], times[peer])
        rows[0] = report.compare(name, *pair, peer, unit="tokens/s", value=value)
    flops = flops_per_token(TrainSpec.build_abstract(c), c.data.length)
    ceiling = report.measure_matmul_ceiling("bfloat16", size=256 if args.size == "smoke" else 8192, repeats=10)
    for name in ("full", "causal"):
        mfu = speed["longhaul"] * flops[name] / ceiling
        rows.append(report.Result(f"MFU, {name} convention", mfu, "", target=TARGETS[args.size]))
    rows.append(report.Result("measured bfloat16 ceiling", ceiling / 1e12, "TFLOP/s"))
    if memory := jax.devices()[0].memory_stats():
        rows.append(report.Result("peak memory", memory["peak_bytes_in_use"] / 2**30, "GiB"))
    report.show(rows, args, c.to_dict())


if __name__ == "__main__":
    report.run(main)
