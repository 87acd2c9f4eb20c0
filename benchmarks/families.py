"""The training steps of BERT-mini and of a small T5 on a CPU, against Hugging Face's in PyTorch, eager and compiled.

    python -m benchmarks.families [--quick] [--format=json] [--memory=kept|returned]

BERT: 4 layers, width 256, masked language modelling and next-sentence prediction, 16 rows of 128 tokens, of which 20
at most are predicted. T5 (version 1.0): 4 + 4 layers, width 256, span corruption, 16 rows of 256 tokens. Both have the
release's vocabulary. Float32, dropout off, AdamW with decay on matrices, gradient clipping at 1, on both sides. A batch
of the standard library's text, corrupted by ours, is given to all sides, each in its own conventions. Each program runs
in a process of its own, on all cores, the same batch over and over; they take turns (turns.py). Rows without padding
are given to the peer without a mask, which is its fastest.

Ours makes logits over the vocabulary for BERT's masked tokens alone. What that saves is measured by the same step on
the same batch, told to look at every token, with weight 0 where none is predicted. `--quick` has 4 rows, and no
compiled peer.
"""

import os
import statistics
import sysconfig
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report, turns
from configs import bert, common, t5
from input_pipeline import pipeline
from pretrain.workdir import Workdir

FAMILIES = {"BERT-mini": (bert, "mini", 128), "T5-mini": (t5, "small", 256)}  # recipe, variant, tokens of a row
BATCH, QUICK_BATCH = 16, 4
RATE, DECAY = 3e-4, 0.01
IGNORED = -100  # the label of what the peer's losses leave out


def config(family: str, rows: int):
    """Our side's config, for batches of so many rows."""
    recipe, variant, length = FAMILIES[family]
    c = recipe.get_config(variant)
    c.model.update(layers=4, width=256, heads=4, ff=1024, context=512, dtype="float32", remat="none", scan=False)
    c.model.dropout = 0.0
    if recipe is bert:
        c.model.dropout_attention = 0.0
        c.tokenizer.update(kind="wordpiece", path="", train_bytes=1_000_000)
    else:
        c.model.head_size = 64
        c.tokenizer.update(kind="sentencepiece", path="", vocab_size=4096, sentinels=100, train_bytes=1_000_000)
    c.data.update(train=f"text:{sysconfig.get_paths()['stdlib']}/[st]*.py", validation="", holdout=0.0, length=length)
    c.train.update(batch_size=rows, accumulate=1, z_loss=0.0)
    c.optimizer, c.schedule = common.base().optimizer, common.base().schedule
    c.optimizer.update(weight_decay=DECAY, clip=1.0)
    c.schedule.update(kind="constant", peak=RATE, warmup=0)
    c.mesh.data = 1
    return c


def save_batch(family: str, rows: int, path: str) -> None:
    """Writes the batch that all programs train on."""
    c = config(family, rows)
    with tempfile.TemporaryDirectory() as folder:
        sections = c.data.to_dict(), c.tokenizer.to_dict(), c.objective.to_dict()
        corpus = pipeline.prepare(*sections, Workdir(folder).folders, report=lambda line: None)
        reader = corpus.batches(seed=0, batch_size=rows, workers=0, prefetch=1)
        np.savez(path, **next(reader))
        reader.close()


def by_place(batch) -> tuple[np.ndarray, np.ndarray]:
    """The targets and weights of masked tokens, listed in `slots`, by their places in the row: [B, T] each."""
    rows, listed = np.nonzero(batch["weights"])
    found = []
    for name in ("targets", "weights"):
        placed = np.zeros(batch["tokens"].shape, batch[name].dtype)
        placed[rows, batch["slots"][rows, listed]] = batch[name][rows, listed]
        found.append(placed)
    return tuple(found)


def longhaul(family: str, path: str, everywhere: bool = False):
    """An update; `everywhere` makes BERT's logits at every place."""
    import jax

    from pretrain import objectives
    from pretrain.processes.heap import keep_freed_memory
    from pretrain.step.engine import make_engine
    from pretrain.step.learner import make_learner

    keep_freed_memory()
    batch = dict(np.load(path))
    c = config(family, len(batch["row"]))
    if everywhere:
        c.objective.max_predictions = c.data.length
        batch["targets"], batch["weights"] = by_place(batch)
        batch["slots"] = np.tile(np.arange(c.data.length, dtype=np.int32), (len(batch["row"]), 1))
    engine = make_engine(make_learner(c), c, jax.devices()[:1])
    state = engine.init(0, c.train.batch_size)
    data = engine.put(batch, c.train.batch_size)

    def step(times):
        nonlocal state
        for _ in range(times):
            state, metrics = engine.step(state, data)
        sums, counts = jax.device_get((metrics["sums"], metrics["counts"]))
        return float(objectives.reported(engine.learner.objective, sums, counts)["loss"])

    return {"step": step}


def hugging_face(family: str, path: str, compiled: bool):
    """An update of BertForPreTraining or T5ForConditionalGeneration, with the fastest AdamW that PyTorch has."""
    torch, transformers = report.peers("torch", "transformers")
    torch.manual_seed(0)
    batch = dict(np.load(path))
    make = bert_peer if FAMILIES[family][0] is bert else t5_peer
    model, inputs = make(transformers, config(family, len(batch["row"])).model, batch)
    inputs = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
    model.train()
    run = torch.compile(model) if compiled else model
    groups = {decay: [p for p in model.parameters() if (p.ndim > 1) == bool(decay)] for decay in (DECAY, 0.0)}
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": decay} for decay, weights in groups.items()], lr=RATE, fused=True
    )

    def step(times):
        for _ in range(times):
            loss = run(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return {"step": step}


def bert_peer(transformers, sizes, batch):
    """The peer's BERT, and the batch in its words."""
    settings = transformers.BertConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.ff,
        hidden_act={"gelu_tanh": "gelu_pytorch_tanh", "gelu_erf": "gelu"}[sizes.activation],
        max_position_embeddings=sizes.context,
        layer_norm_eps=sizes.norm_epsilon,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    targets, weights = by_place(batch)
    inputs = {
        "input_ids": batch["tokens"],
        "token_type_ids": batch["types"],
        "labels": np.where(weights > 0, targets, IGNORED),
        "next_sentence_label": batch["next"],
    }
    return transformers.BertForPreTraining(settings), inputs | unless_full("attention_mask", batch["segments"])


def t5_peer(transformers, sizes, batch):
    """The peer's T5, and the batch in its words."""
    settings = transformers.T5Config(
        vocab_size=sizes.vocab_size,
        d_model=sizes.width,
        d_kv=sizes.head_size,
        d_ff=sizes.ff,
        num_layers=sizes.layers,
        num_decoder_layers=sizes.layers,
        num_heads=sizes.heads,
        relative_attention_num_buckets=sizes.buckets,
        relative_attention_max_distance=sizes.max_distance,
        layer_norm_epsilon=sizes.norm_epsilon,
        feed_forward_proj=sizes.activation,
        tie_word_embeddings=sizes.tied_head,
        dropout_rate=0.0,
        use_cache=False,
    )
    inputs = {
        "input_ids": batch["inputs"],
        "decoder_input_ids": batch["tokens"],
        "labels": np.where(batch["weights"] > 0, batch["targets"], IGNORED),
    }
    masks = unless_full("attention_mask", batch["input_segments"])
    masks |= unless_full("decoder_attention_mask", batch["segments"])
    return transformers.T5ForConditionalGeneration(settings), inputs | masks


def unless_full(name: str, segments: np.ndarray) -> dict[str, np.ndarray]:
    """The mask that tells tokens from padding, where there is padding."""
    return {} if segments.all() else {name: (segments > 0).astype(np.int32)}


def saved(family: str, ours: list[turns.Turn], everywhere: list[turns.Turn]) -> list[report.Result]:
    """What an update costs with logits at masked places alone, against logits at every place."""
    rows = []
    for field, unit in (("seconds", "ms"), ("processor", "ms of processor time")):
        few, all_ = ([getattr(turn, field) for turn in taken] for taken in (ours, everywhere))
        ratio, spread = report.ratio(few, all_)
        name, value = f"{family}, an update, logits at masked places", statistics.median(few) * 1e3
        rows.append(report.Result(name, value, unit, "logits at every place", ratio, None, spread))
    return rows


def compared(family: str, path: str, args) -> tuple[list[report.Result], dict[str, str]]:
    """All rows of one family, and the versions of what they are of."""
    rounds, times, batch_size = (5, 1, QUICK_BATCH) if args.quick else (9, 3, BATCH)
    save_batch(family, batch_size, path)

    def program(function: str, side: str, **options):
        return turns.Program(f"benchmarks.families:{function}", side, args.memory, family=family, path=path, **options)

    ours, everywhere = f"{family}, longhaul", f"{family}, longhaul, logits at every place"
    programs = {ours: program("longhaul", "ours")}
    for compiled in (False,) if args.quick else (False, True):
        name = f"{family}, hugging face {'compiled' if compiled else 'eager'}"
        programs[name] = program("hugging_face", "peer", compiled=compiled)
    more = {everywhere: program("longhaul", "ours", everywhere=True)} if FAMILIES[family][0] is bert else {}
    taken = turns.in_turns(programs | more, "step", rounds, times, warmup=1 if args.quick else 3)
    for one in (programs | more).values():
        one.end()
    of_all = {who: taken[who] for who in programs}
    rows = turns.compared(of_all, ours, "updates/s", 1.0, 1.2 if "Intel" in report.device() else 1.5)
    for who, those in of_all.items():
        examples = batch_size / statistics.median(turn.seconds for turn in those)
        rows.append(report.Result(who, examples, "examples/s"))
        rows.append(report.Result(f"{who}, loss after as many updates", those[-1].value, "nats"))
    if more:
        rows += saved(family, taken[ours], taken[everywhere])
    return rows, turns.versions(programs)


def main():
    args = turns.arguments(__doc__.split("\n")[0]).parse_args()
    rows, versions = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            more, loaded = compared(family, os.path.join(folder, f"{family}.npz"), args)
            rows, versions = rows + more, versions | loaded
    configs = {family: config(family, QUICK_BATCH if args.quick else BATCH).to_dict() for family in FAMILIES}
    report.show(rows, args, {"memory": args.memory, **configs}, versions)


if __name__ == "__main__":
    main()
