"""Training steps of BERT and T5 on long documents, with a sparse against a dense encoder.

    python -m benchmarks.long_documents [--quick] [--format=json]

At 4,096 tokens and, without --quick, at 16,384: time, and temporaries of the compiled program. The dense step uses the
backend that `auto` picks, whose memory grows as T too. The networks are those of `configs/long_documents.py`, with 2
layers of width 128 on a CPU and 12 of 768 on an accelerator.
"""

import statistics

import jax

from benchmarks import report, steps
from configs import long_documents
from pretrain.distributed.init import keep_freed_memory
from pretrain.step.train_spec import TrainSpec

ACCELERATED = jax.default_backend() != "cpu"
SMALL = {"layers": 2, "width": 128, "heads": 2, "ff": 512, "vocab_size": 1024, "dtype": "float32"}
LENGTHS = {4096: "4k", 16_384: "16k"}
ROUNDS = 5


def config_of(family: str, length: int, dense: bool):
    """The recipe of one family at a length, one row per batch, with a dense or its sparse encoder."""
    config = long_documents.get_config(f"{family}_{LENGTHS[length]}")
    if not ACCELERATED:
        config.model.update(SMALL | ({"head_size": 64} if family == "t5" else {}))
    if dense:
        config.model.attention = ("dense", "dense")
    config.train.batch_size = config.evaluate.batch_size = config.mesh.data = 1
    return config


def training_step(family: str, length: int, dense: bool):
    """(function that makes one update and waits, bytes of temporaries)."""
    config = config_of(family, length, dense)
    spec = TrainSpec.build(config, jax.devices()[:1])
    memory = spec.lower_train_step(1, length).compile().memory_analysis().temp_size_in_bytes
    return steps.updates(spec, steps.random_batch(spec, 1, length), 1), memory


def compare(family: str, length: int, rounds: int) -> list[report.Result]:
    """Time and memory of the sparse step against the dense one."""
    programs = {name: training_step(family, length, name == "dense") for name in ("dense", "sparse")}
    times = report.interleave({name: run for name, (run, _) in programs.items()}, rounds)
    label, peer, memory = f"{family}, step of {length}", "dense encoder", programs["sparse"][1]
    less = programs["dense"][1] / memory
    return [
        report.Result(f"{label}, dense", statistics.median(times["dense"]), "s"),
        report.compare(f"{label}, sparse", times["sparse"], times["dense"], peer, target=1),
        report.Result(f"{label}, dense, memory", programs["dense"][1] / 1e6, "MB"),
        report.Result(f"{label}, sparse, memory", memory / 1e6, "MB", peer, less),
    ]


def main() -> None:
    args = report.arguments(__doc__).parse_args()
    keep_freed_memory()
    for length in (4096,) if args.quick else (4096, 16_384):
        for family in ("bert", "t5"):
            report.show(compare(family, length, ROUNDS), args, [family, length, ROUNDS, SMALL])


if __name__ == "__main__":
    main()
