"""Training steps of small models on a CPU, against Hugging Face's in PyTorch, eager and compiled.

    python -m benchmarks.families [--quick] [--only=NAME,...] [--format=json] [--memory=kept|returned]

Models have 4 layers (or 4 + 4), width 256 and their release's vocabulary, and train on 16 rows of 128 tokens (T5: 256)
in float32 without dropout, with AdamW and clipping at 1. The peer is built from the config.json that `pretrain export`
writes. ELECTRA's peer joins both of its classes with shared embeddings and the paper's loss; DistilBERT's adds a frozen
BERT teacher of 8 layers and the paper's three losses. All programs repeat one batch of the standard library's text,
corrupted by ours, and take turns (turns.py). Rows without padding go to the peer without a mask, its fastest case.

Ours computes BERT's logits at masked positions alone; the same step with logits at every position shows the saving.
`--quick` has 4 rows and no compiled peer.
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

from benchmarks import report, steps, turns
from configs import albert, bart, bert, common, distilbert, electra, t5
from input_pipeline import pipeline
from pretrain.interop import families
from pretrain.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Case:
    """A small model of a family: its recipe, tokens per row, and changes of the recipe's sections."""

    recipe: ModuleType
    variant: str
    length: int
    tokenizer: dict
    model: dict = dataclasses.field(default_factory=dict)
    objective: dict = dataclasses.field(default_factory=dict)
    teacher: dict = dataclasses.field(default_factory=dict)  # changes of the student's model


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
IGNORED = -100  # label without a loss in PyTorch


def config(family: str, rows: int):
    """Our config, for batches of `rows` rows."""
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
        c.data.update(layout="packed", sentences="")  # one text per row, as the peers get it
    c.data.length = case.length
    c.train.update(batch_size=rows, accumulate=1, z_loss=0.0)
    c.optimizer, c.schedule = common.base().optimizer, common.base().schedule
    c.optimizer.update(weight_decay=DECAY, clip=1.0)
    c.schedule.update(kind="constant", peak=RATE, warmup=0)
    c.mesh.data = 1
    return c


def save_batch(family: str, rows: int, path: str) -> None:
    """Write the batch that all programs train on."""
    c = config(family, rows)
    with tempfile.TemporaryDirectory() as folder:
        sections = c.data.to_dict(), c.tokenizer.to_dict(), c.objective.to_dict()
        corpus = pipeline.prepare(*sections, Workdir(folder).folders, report=lambda line: None)
        reader = corpus.batches(seed=0, batch_size=rows, workers=0, prefetch=1)
        np.savez(path, **next(reader))
        reader.close()


def scatter_targets(batch) -> tuple[np.ndarray, np.ndarray]:
    """Targets and weights [B, T] of the masked tokens that `slots` lists."""
    rows, listed = np.nonzero(batch["weights"])
    found = []
    for name in ("targets", "weights"):
        placed = np.zeros(batch["tokens"].shape, batch[name].dtype)
        placed[rows, batch["slots"][rows, listed]] = batch[name][rows, listed]
        found.append(placed)
    return tuple(found)


def longhaul(family: str, path: str, everywhere: bool = False):
    """An update of ours; `everywhere` computes BERT's logits at every position."""
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
        batch["targets"], batch["weights"] = scatter_targets(batch)
        batch["slots"] = np.tile(np.arange(c.data.length, dtype=np.int32), (len(batch["row"]), 1))
    spec = TrainSpec.build(c, jax.devices()[:1])
    if c.distill.teacher:
        frozen = nn.unbox(init_params(spec.objective.teacher, jax.random.key(1)))
        spec.set_frozen(jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), frozen, spec.frozen_shapes()))
    update = steps.updates(spec, batch, c.train.batch_size)

    def step(times):
        metrics = jax.device_get(update(times))
        return float(losses.compute_terms(spec.objective, metrics["sums"], metrics["counts"])["loss"])

    return {"step": step}


def hugging_face(family: str, path: str, compiled: bool):
    """An update of the class that our model is exported to, with PyTorch's fused AdamW, its fastest."""
    torch, _ = report.peers("torch", "transformers")
    torch.manual_seed(0)
    batch = dict(np.load(path))
    c = config(family, len(batch["row"]))
    task = student if c.distill.teacher else PEERS[c.objective.kind]
    model, inputs = task(c, batch)
    inputs = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
    model.train()
    run = torch.compile(model) if compiled else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = {decay: [p for p in trained if (p.ndim > 1) == bool(decay)] for decay in (DECAY, 0.0)}
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": decay} for decay, weights in groups.items()], lr=RATE, fused=True
    )

    return {"step": steps.torch_updates(lambda: run(**inputs).loss, trained, optimizer)}


def peer(section: dict, part: str = ""):
    """The peer's model for our `model` section, or a part of it."""
    (transformers,) = report.peers("transformers")
    family, keys = families.of_section(section, part)
    settings = transformers.AutoConfig.for_model(family.model_type, **keys)
    settings.use_cache = False
    return getattr(transformers, family.architecture(section))(settings)


def masked_lm(c, batch):
    """The peer and its inputs: labels at every position, and of pairs the next-sentence label."""
    model, (targets, weights) = peer(c.model.to_dict()), scatter_targets(batch)
    inputs = {"input_ids": batch["tokens"], "labels": np.where(weights > 0, targets, IGNORED)}
    inputs |= padding_mask("attention_mask", batch["segments"])
    if "next" in batch:
        inputs |= {"token_type_ids": batch["types"], PAIR_LABELS[model.config.model_type]: batch["next"]}
    return model, inputs


def seq2seq(c, batch):
    """The peer and its inputs for encoder and decoder."""
    inputs = {
        "input_ids": batch["inputs"],
        "decoder_input_ids": batch["tokens"],
        "labels": np.where(batch["weights"] > 0, batch["targets"], IGNORED),
    }
    inputs |= padding_mask("attention_mask", batch["input_segments"])
    return peer(c.model.to_dict()), inputs | padding_mask("decoder_attention_mask", batch["segments"])


def replaced_tokens(c, batch):
    """The peer's generator and discriminator with shared embeddings, and their inputs."""
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
                gumbel = -torch.log(-torch.log(torch.rand_like(logits)))
                samples = torch.where(used > 0, (logits + gumbel).argmax(-1), originals.gather(1, slots))
                corrupted = originals.scatter(1, slots, samples)
            replaced = (corrupted != originals).float()
            verdicts = self.discriminator(input_ids=corrupted, **mask).logits
            bce = functional.binary_cross_entropy_with_logits(verdicts, replaced, reduction="none")
            return Loss(mlm + 50 * (bce * scored).sum() / scored.sum())  # 50: the paper's lambda

    inputs = {name: batch[name] for name in ("tokens", "originals", "slots", "targets")}
    inputs |= {"used": batch["weights"], "scored": batch["token_weights"]}
    return Electra(), inputs | padding_mask("attention_mask", batch["segments"])


def student(c, batch):
    """The peer's student with a frozen teacher, and their inputs."""
    import torch
    from torch.nn import functional

    distill = c.distill

    class Student(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.student = peer(c.model.to_dict())
            self.teacher = peer(c.model.to_dict() | distill.model.to_dict()).requires_grad_(False)

        def forward(self, tokens, labels, **mask):
            outputs = [self.student(input_ids=tokens, output_hidden_states=True, **mask)]
            with torch.no_grad():
                outputs.append(self.teacher(input_ids=tokens, output_hidden_states=True, **mask))
            valid = mask["attention_mask"].bool() if mask else torch.ones_like(tokens, dtype=torch.bool)
            states = [output.hidden_states[-1][valid] for output in outputs]
            soft = [functional.log_softmax(output.logits[valid] / distill.temperature, -1) for output in outputs]
            kl = functional.kl_div(*soft, reduction="batchmean", log_target=True) * distill.temperature**2
            mlm = functional.cross_entropy(outputs[0].logits.transpose(1, 2), labels)
            cosine = 1 - functional.cosine_similarity(*states).mean()
            return Loss(distill.soft * kl + distill.hard * mlm + distill.cosine * cosine)

    targets, weights = scatter_targets(batch)
    inputs = {"tokens": batch["tokens"], "labels": np.where(weights > 0, targets, IGNORED)}
    return Student(), inputs | padding_mask("attention_mask", batch["segments"])


@dataclasses.dataclass
class Loss:
    """Output of a peer."""

    loss: object


PEERS = {
    "masked": masked_lm,
    "spans": seq2seq,
    "denoising": seq2seq,
    "replaced": replaced_tokens,
}  # by kind of our objective
PAIR_LABELS = {"bert": "next_sentence_label", "albert": "sentence_order_label"}


def padding_mask(name: str, segments: np.ndarray) -> dict[str, np.ndarray]:
    """The padding mask, if there is padding."""
    return {} if segments.all() else {name: (segments > 0).astype(np.int32)}


def compare_logits(family: str, masked: list[turns.Turn], everywhere: list[turns.Turn]) -> list[report.Result]:
    """Cost of an update with logits at masked positions alone, against logits everywhere."""
    rows = []
    for field, unit in (("seconds", "ms"), ("processor", "ms of processor time")):
        pair = [[getattr(turn, field) for turn in own] for own in (masked, everywhere)]
        name = f"{family}, an update, logits at masked places"
        rows.append(report.compare(name, *pair, "logits at every place", unit=unit, scale=1e3))
    return rows


def compare(family: str, path: str, args) -> tuple[list[report.Result], dict[str, str]]:
    """Results of one family, and the versions of the packages."""
    rounds, times, batch_size = (5, 1, QUICK_BATCH) if args.quick else (9, 3, BATCH)
    save_batch(family, batch_size, path)

    def program(function: str, side: str, **options):
        return turns.Program(f"benchmarks.families:{function}", side, args.memory, family=family, path=path, **options)

    ours, everywhere = f"{family}, longhaul", f"{family}, longhaul, logits at every place"
    programs = {ours: program("longhaul", "ours")}
    for compiled in (False,) if args.quick else (False, True):
        name = f"{family}, hugging face {'compiled' if compiled else 'eager'}"
        programs[name] = program("hugging_face", "peer", compiled=compiled)
    extra = {everywhere: program("longhaul", "ours", everywhere=True)} if FAMILIES[family].recipe is bert else {}
    results = turns.take_turns(programs | extra, "step", rounds, times, warmup=1 if args.quick else 3)
    for one in (programs | extra).values():
        one.end()
    compared = {who: results[who] for who in programs}
    rows = turns.compare(compared, ours, "updates/s", 1.0, 1.2 if "Intel" in report.device() else 1.5)
    for who, own in compared.items():
        examples = batch_size / statistics.median(turn.seconds for turn in own)
        rows.append(report.Result(who, examples, "examples/s"))
        rows.append(report.Result(f"{who}, loss after as many updates", own[-1].value, "nats"))
    if extra:
        rows += compare_logits(family, results[ours], results[everywhere])
    return rows, turns.versions(programs)


def main():
    parser = turns.arguments(__doc__)
    parser.add_argument("--only", default=",".join(FAMILIES), help="models to measure (default: %(default)s)")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - FAMILIES.keys():
        parser.error(f"--only={','.join(sorted(unknown))} is unknown; choose from: {', '.join(FAMILIES)}")
    rows, versions = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for family in chosen:
            more, loaded = compare(family, os.path.join(folder, f"{family}.npz"), args)
            rows, versions = rows + more, versions | loaded
    configs = {family: config(family, QUICK_BATCH if args.quick else BATCH).to_dict() for family in chosen}
    report.show(rows, args, {"memory": args.memory, **configs}, versions)


if __name__ == "__main__":
    main()
