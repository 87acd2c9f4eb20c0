"""nanoGPT's CPU task, against a plain PyTorch model of the same shape, eager and compiled.

    python -m benchmarks.small_step [--quick] [--format=json] [--memory=kept|returned] [--text=FILE]

4 layers of 4 heads, width 128, no biases but in norms; 12 rows of 64 characters; AdamW (0.9, 0.99), decay 0.1 on
matrices, clipping at 1, 100 warm-up updates to a rate of 1e-3, cosine decay to a tenth at update 2,000. Both sides
train on the same batches in turns (turns.py) and are evaluated on the same windows of the last tenth of the text.
`--text` is a text file, such as nanoGPT's Shakespeare (65 symbols); by default 1 MB of the standard library's source
with its 65 most frequent symbols.
"""

import collections
import functools
import itertools
import os
import statistics
import sysconfig
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report, steps, turns
from configs import gpt2

SYMBOLS, LENGTH, BATCH, LAYERS, WIDTH, HEADS = 65, 64, 12, 4, 128, 4
UPDATES, PEAK, WARMUP, END = 2000, 1e-3, 100, 0.1
WINDOWS = 240  # to evaluate on
TARGET = 2.0


@functools.cache
def symbols(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The text as numbers below SYMBOLS: the first nine tenths, and the last one."""
    if text:
        content = Path(text).read_bytes()
    else:
        paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        content = b"".join(path.read_bytes() for path in paths)[: 2**20]
    common = sorted(symbol for symbol, _ in collections.Counter(content).most_common(SYMBOLS))
    content = np.frombuffer(content, np.uint8)
    content = content[np.isin(content, common)]
    numbers = np.searchsorted(common, content).astype(np.int32)
    split = len(numbers) * 9 // 10
    return numbers[:split], numbers[split:]


def windows(part: np.ndarray, starts) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets) [B, T] of the windows at `starts`."""
    rows = np.stack([part[start : start + LENGTH + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def batch(text: str, update: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch of an update, the same for every program."""
    part = symbols(text)[0]
    return windows(part, np.random.default_rng(update).integers(0, len(part) - LENGTH, BATCH))


def evaluation_batches(text: str):
    """Evaluation batches: windows at equal distances."""
    part = symbols(text)[1]
    starts = np.linspace(0, len(part) - LENGTH - 1, WINDOWS).astype(int)
    return [windows(part, group) for group in starts.reshape(-1, BATCH)]


def config():
    """Our config."""
    c = gpt2.get_config("small")
    c.model.update(vocab_size=SYMBOLS, context=LENGTH, layers=LAYERS, width=WIDTH, heads=HEADS, ff=4 * WIDTH)
    c.model.update(steps.NO_DROPOUT, attention_bias=False, ff_bias=False, dtype="float32", remat="none", scan=False)
    c.data.length = LENGTH
    c.train.update(batch_size=BATCH, accumulate=1, steps=UPDATES)
    c.optimizer.update(name="adamw", b1=0.9, b2=0.99, clip=1.0, weight_decay=0.1)
    c.schedule.update(kind="cosine", peak=PEAK, warmup=WARMUP, end=END)
    c.mesh.data = 1
    return c


def longhaul(text: str):
    """Updates of ours, and the loss on the evaluation windows."""
    import jax

    from pretrain.distributed.init import keep_freed_memory
    from pretrain.step.train_spec import TrainSpec

    keep_freed_memory()
    c = config()
    spec = TrainSpec.build(c, jax.devices()[:1])
    state = spec.init(0, BATCH)
    done = 0
    fixed = {
        "row": np.arange(BATCH, dtype=np.int32),
        "weights": np.ones((BATCH, LENGTH), np.float32),
        "segments": np.ones((BATCH, LENGTH), np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1)),
    }

    def put(rows):
        return spec.put({"tokens": rows[0], "targets": rows[1]} | fixed, BATCH)

    def update(times):
        nonlocal state, done
        for number in range(done, done + times):
            state, _ = spec.train_step(state, put(batch(text, number)))
        done += times
        jax.block_until_ready(state)

    def loss(times):
        nll = sum(
            float(spec.eval_step(state.params, put(rows), {})[0]["sums"]["loss"]) for rows in evaluation_batches(text)
        )
        return nll / (WINDOWS * LENGTH)

    return {"update": update, "loss": loss}


def pytorch(text: str, compiled: bool):
    """The same for a plain PyTorch model with fused AdamW, its fastest on a CPU."""
    (torch,) = report.peers("torch")
    nn, functional = torch.nn, torch.nn.functional
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.feed_forward_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.widen = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
            self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, x):
            heads = self.qkv(self.attention_norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.output(y.transpose(1, 2).reshape(x.shape))
            return x + self.narrow(functional.gelu(self.widen(self.feed_forward_norm(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.final_norm = nn.LayerNorm(WIDTH)
            for name, weight in self.named_parameters():
                last = name.endswith(("output.weight", "narrow.weight"))
                if weight.ndim == 2:
                    nn.init.normal_(weight, std=0.02 / (2 * LAYERS) ** 0.5 if last else 0.02)

        def forward(self, inputs, targets):
            x = self.blocks(self.tokens(inputs) + self.positions.weight)
            logits = self.final_norm(x) @ self.tokens.weight.T
            return functional.cross_entropy(logits.view(-1, SYMBOLS), targets.reshape(-1))

    model = Model()
    run = torch.compile(model) if compiled else model
    groups = {decay: [w for w in model.parameters() if (w.ndim == 2) == bool(decay)] for decay in (0.1, 0.0)}
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": decay} for decay, weights in groups.items()],
        lr=PEAK,
        betas=(0.9, 0.99),
        fused=True,
    )
    rates, numbers = learning_rates(), itertools.count()

    def put(rows):
        return [torch.from_numpy(side).long() for side in rows]

    def next_loss():
        number = next(numbers)
        for group in optimizer.param_groups:
            group["lr"] = rates[number]
        return run(*put(batch(text, number)))

    def loss(times):
        with torch.no_grad():
            return statistics.fmean(float(model(*put(rows))) for rows in evaluation_batches(text))

    return {"update": steps.torch_updates(next_loss, model.parameters(), optimizer), "loss": loss}


def learning_rates() -> list[float]:
    """Learning rates of all updates: linear warm-up, cosine decay."""
    n = np.arange(UPDATES)
    cosine = 0.5 * (1 + np.cos(np.pi * (n - WARMUP) / (UPDATES - WARMUP)))
    return np.where(n < WARMUP, PEAK * (n + 1) / WARMUP, PEAK * (END + (1 - END) * cosine)).tolist()


def main():
    parser = turns.arguments(__doc__)
    parser.add_argument("--text", default="", help="text to train on (default: the standard library's source)")
    args = parser.parse_args()
    text = os.path.abspath(args.text) if args.text else ""
    if args.text and not os.path.isfile(text):
        parser.error(f"--text={args.text}: no such file")
    programs = {"longhaul": turns.Program("benchmarks.small_step:longhaul", "ours", args.memory, text=text)}
    for compiled in (False, True):
        name = f"pytorch {'compiled' if compiled else 'eager'}"
        programs[name] = turns.Program(
            "benchmarks.small_step:pytorch", "peer", args.memory, text=text, compiled=compiled
        )
    total = UPDATES // 10 if args.quick else UPDATES
    rounds = 4 if args.quick else 19
    times = total // (rounds + 1)  # per turn, one of them untimed; the first turn is the warm-up
    results = turns.take_turns(programs, "update", rounds, times - 1, warmup=times - 1)
    rows = turns.compare(results, "longhaul", "updates/s", 1.0, TARGET)
    for name, program in programs.items():
        rows.append(report.Result(f"{name}, loss after {total:,} updates", program.turn("loss").value, "nats a symbol"))
    report.show(rows, args, {"memory": args.memory, "text": text, **config().to_dict()}, turns.versions(programs))


if __name__ == "__main__":
    report.run(main)
