"""The training steps of small models of the families on a CPU, against Hugging Face's in PyTorch, eager and compiled.

    python -m benchmarks.families [--quick] [--only=NAME,...] [--format=json] [--memory=kept|returned]

Every model has 4 layers, or 4 + 4, width 256 and its release's vocabulary; BERT, ALBERT, ELECTRA, DistilBERT and BART
read 16 rows of 128 tokens, T5 of 256. The peer is what `pretrain export` would name for our config, and is made of the
config.json that it would write. Its library has no class for ELECTRA's two models together: the peer is both of its
classes with shared tables, samples and losses as in the paper, the generator's logits made at masked places alone. Nor
has it one of a student with a teacher, here of 8 layers: the peer is DistilBERT's class and BERT's, which nothing
changes, with the paper's three losses over the logits and last states of all tokens. Float32, dropout off, AdamW with
decay on matrices, gradient clipping at 1, on both sides. A batch of the standard library's text, corrupted by ours, is
given to all sides, each in its own conventions. Each program runs in a process of its own, on all cores, the same batch
over and over; they take turns (turns.py). Rows without padding are given to the peer without a mask, which is its
fastest.

Ours makes logits over the vocabulary for BERT's masked tokens alone. What that saves is measured by the same step on
the same batch, told to look at every token, with weight 0 where none is predicted. `--quick` has 4 rows, and no
compiled peer.
"""

import dataclasses
import os
import statistics
import sysconfig
import tempfile
from types import ModuleType

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from ml_collections import ConfigDict

from benchmarks import report, turns
from configs import albert, bart, bert, common, distilbert, electra, t5
from input_pipeline import pipeline
from pretrain.interop import families
from pretrain.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Case:
    """A small model of a family: the recipe, tokens of a row, and what of the recipe's sections is another here."""

    recipe: ModuleType
    variant: str
    length: int
    tokenizer: dict
    model: dict = dataclasses.field(default_factory=dict)
    objective: dict = dataclasses.field(default_factory=dict)
    teacher: dict = dataclasses.field(default_factory=dict)  # what of the student's model a teacher's has otherwise


WORDPIECES = {"kind": "wordpiece", "path": "", "train_bytes": 1_000_000}
PIECES = {"kind": "sentencepiece", "path": "", "train_bytes": 1_000_000, "vocab_size": 4096}
FAMILIES = {
    "BERT-mini": Case(bert, "mini", 128, WORDPIECES),
    "ALBERT-mini": Case(albert, "base", 128, PIECES, {"embed": 128}),
    "ELECTRA-mini": Case(electra, "small", 128, WORDPIECES, {"embed": 128}),
    "DistilBERT-mini": Case(
        distilbert, "uncased", 128, WORDPIECES, objective={"max_predictions": 20}, teacher={"layers": 8, "types": 2}
    ),
    "BART-mini": Case(bart, "base", 128, PIECES, {"head_size": 64}),
    "T5-mini": Case(t5, "small", 256, PIECES | {"sentinels": 100}, {"head_size": 64}),
}
BATCH, QUICK_BATCH = 16, 4
RATE, DECAY = 3e-4, 0.01
IGNORED = -100  # the label of what the peer's losses leave out


def config(family: str, rows: int):
    """Our side's config, for batches of so many rows."""
    case = FAMILIES[family]
    c = case.recipe.get_config(case.variant)
    c.model.update(layers=4, width=256, heads=4, ff=1024, context=512, dtype="float32", remat="none", scan=False)
    c.model.update({name: 0.0 for name in c.model if name.startswith("dropout")})
    c.model.update(case.model)
    c.objective.update(case.objective)
    c.distill.layers = ()
    with c.unlocked():
        c.distill.model = ConfigDict(case.teacher)
    c.tokenizer.update(case.tokenizer)
    c.data.update(train=f"text:{sysconfig.get_paths()['stdlib']}/[st]*.py", validation="", holdout=0.0)
    if c.data.layout != "pairs" and c.data.sentences:
        c.data.update(layout="packed", sentences="")  # one text a row, as the peers are given it
    c.data.length = case.length
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
    from flax import linen as nn

    from pretrain import losses
    from pretrain.distributed.init import keep_freed_memory
    from pretrain.step.train_spec import TrainSpec
    from pretrain.step.train_step import init_params

    keep_freed_memory()
    batch = dict(np.load(path))
    c = config(family, len(batch["row"]))
    if everywhere:
        c.objective.max_predictions = c.data.length
        batch["targets"], batch["weights"] = by_place(batch)
        batch["slots"] = np.tile(np.arange(c.data.length, dtype=np.int32), (len(batch["row"]), 1))
    spec = TrainSpec.build(c, jax.devices()[:1])
    if c.distill.teacher:
        frozen = nn.unbox(init_params(spec.objective.teacher, jax.random.key(1)))
        spec.set_frozen(jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), frozen, spec.frozen_shapes()))
    state = spec.init(0, c.train.batch_size)
    data = spec.put(batch, c.train.batch_size)

    def step(times):
        nonlocal state
        for _ in range(times):
            state, metrics = spec.train_step(state, data)
        sums, counts = jax.device_get((metrics["sums"], metrics["counts"]))
        return float(losses.compute_terms(spec.objective, sums, counts)["loss"])

    return {"step": step}


def hugging_face(family: str, path: str, compiled: bool):
    """An update of the class that our model is exported as, with the fastest AdamW that PyTorch has."""
    torch, _ = report.peers("torch", "transformers")
    torch.manual_seed(0)
    batch = dict(np.load(path))
    c = config(family, len(batch["row"]))
    task = taught if c.distill.teacher else PEERS[c.objective.kind]
    model, inputs = task(c, batch)
    inputs = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
    model.train()
    run = torch.compile(model) if compiled else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = {decay: [p for p in trained if (p.ndim > 1) == bool(decay)] for decay in (DECAY, 0.0)}
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": decay} for decay, weights in groups.items()], lr=RATE, fused=True
    )

    def step(times):
        for _ in range(times):
            loss = run(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return {"step": step}


def peer(section: dict, part: str = ""):
    """The peer's model of a `model` section of ours, or of a part of it."""
    (transformers,) = report.peers("transformers")
    family, keys = families.of_section(section, "the benchmark's config", part)
    settings = transformers.AutoConfig.for_model(family.model_type, **keys)
    settings.use_cache = False
    return getattr(transformers, family.architecture(section))(settings)


def masked(c, batch):
    """The peer, and the batch in its words: labels everywhere, of pairs whether the second is the next."""
    model, (targets, weights) = peer(c.model.to_dict()), by_place(batch)
    inputs = {"input_ids": batch["tokens"], "labels": np.where(weights > 0, targets, IGNORED)}
    inputs |= unless_full("attention_mask", batch["segments"])
    if "next" in batch:
        inputs |= {"token_type_ids": batch["types"], PAIR_LABELS[model.config.model_type]: batch["next"]}
    return model, inputs


def written(c, batch):
    """The peer, and the batch in its words: what an encoder reads, and what a decoder reads and writes."""
    inputs = {
        "input_ids": batch["inputs"],
        "decoder_input_ids": batch["tokens"],
        "labels": np.where(batch["weights"] > 0, batch["targets"], IGNORED),
    }
    inputs |= unless_full("attention_mask", batch["input_segments"])
    return peer(c.model.to_dict()), inputs | unless_full("decoder_attention_mask", batch["segments"])


def replaced(c, batch):
    """The peer's generator and discriminator over the same tables, and the batch."""
    import torch
    from torch.nn import functional

    section = c.model.to_dict()

    class Electra(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.discriminator = peer(section, "generator"), peer(section)
            shared = self.discriminator.electra.embeddings
            self.generator.electra.embeddings = shared
            self.generator.generator_lm_head.weight = shared.word_embeddings.weight

        def forward(self, tokens, originals, slots, targets, used, scored, **mask):
            states = self.generator.electra(input_ids=tokens, **mask).last_hidden_state
            at_slots = states.gather(1, slots[..., None].expand(-1, -1, states.shape[-1]))
            predictions = self.generator.generator_predictions(at_slots)
            logits = self.generator.generator_lm_head(predictions)
            mlm = functional.cross_entropy(logits.transpose(1, 2), torch.where(used > 0, targets, IGNORED))
            with torch.no_grad():
                drawn = (logits - torch.log(-torch.log(torch.rand_like(logits)))).argmax(-1)
                read = originals.scatter(1, slots, torch.where(used > 0, drawn, originals.gather(1, slots)))
            verdicts = self.discriminator(input_ids=read, **mask).logits
            told = functional.binary_cross_entropy_with_logits(verdicts, (read != originals).float(), reduction="none")
            loss = mlm + 50 * (told * scored).sum() / scored.sum()
            return Loss(loss)

    inputs = {name: batch[name] for name in ("tokens", "originals", "slots", "targets")}
    inputs |= {"used": batch["weights"], "scored": batch["token_weights"]}
    return Electra(), inputs | unless_full("attention_mask", batch["segments"])


def taught(c, batch):
    """The peer's student beside a teacher that nothing changes, and the batch."""
    import torch
    from torch.nn import functional

    distill = c.distill

    class Student(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.student = peer(c.model.to_dict())
            self.teacher = peer(c.model.to_dict() | distill.model.to_dict()).requires_grad_(False)

        def forward(self, tokens, labels, **mask):
            found = self.student(input_ids=tokens, output_hidden_states=True, **mask)
            with torch.no_grad():
                wanted = self.teacher(input_ids=tokens, output_hidden_states=True, **mask)
            there = mask["attention_mask"].bool() if mask else torch.ones_like(tokens, dtype=torch.bool)
            states = [one.hidden_states[-1][there] for one in (found, wanted)]
            soft = [functional.log_softmax(one.logits[there] / distill.temperature, -1) for one in (found, wanted)]
            kl = functional.kl_div(*soft, reduction="batchmean", log_target=True) * distill.temperature**2
            mlm = functional.cross_entropy(found.logits.transpose(1, 2), labels)
            cosine = 1 - functional.cosine_similarity(*states).mean()
            return Loss(distill.soft * kl + distill.hard * mlm + distill.cosine * cosine)

    targets, weights = by_place(batch)
    inputs = {"tokens": batch["tokens"], "labels": np.where(weights > 0, targets, IGNORED)}
    return Student(), inputs | unless_full("attention_mask", batch["segments"])


@dataclasses.dataclass
class Loss:
    """What is read of what a peer returns."""

    loss: object


PEERS = {"masked": masked, "spans": written, "denoising": written, "replaced": replaced}  # by the kind of our objective
PAIR_LABELS = {"bert": "next_sentence_label", "albert": "sentence_order_label"}


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
    more = {everywhere: program("longhaul", "ours", everywhere=True)} if FAMILIES[family].recipe is bert else {}
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
    parser = turns.arguments(__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(FAMILIES), help="models to measure (default: %(default)s)")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - FAMILIES.keys():
        parser.error(f"--only={','.join(sorted(unknown))} is unknown; choose from: {', '.join(FAMILIES)}")
    rows, versions = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for family in chosen:
            more, loaded = compared(family, os.path.join(folder, f"{family}.npz"), args)
            rows, versions = rows + more, versions | loaded
    configs = {family: config(family, QUICK_BATCH if args.quick else BATCH).to_dict() for family in chosen}
    report.show(rows, args, {"memory": args.memory, **configs}, versions)


if __name__ == "__main__":
    main()
