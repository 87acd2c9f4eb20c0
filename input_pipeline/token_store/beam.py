"""Parts of a token store made by an Apache Beam pipeline, on as many machines as its runner has.

The pipeline carries no text. Its elements are parts; a worker writes each with `encode` into the store's folder, its
record last, and the program that started the pipeline reads the records there. So the runner returns nothing, a
restarted worker makes the same files, and a killed pipeline resumes.
"""

import pickle
import shlex
from collections.abc import Iterator, Sequence

from input_pipeline.errors import DataError
from input_pipeline.io import read_json
from input_pipeline.token_store.build import Workers
from input_pipeline.token_store.writer import Job, encode, record_path


def pipeline(options: str) -> Workers:
    """Parts are made by the pipeline of `options`, such as "--runner=DirectRunner --direct_num_workers=2".

    Errors: DataError without Beam, and Beam's own.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise DataError("--beam needs the package apache-beam. Run pip install -e '.[beam]'.") from None

    def work(jobs: Sequence[Job]) -> Iterator[tuple[int, dict]]:
        with beam.Pipeline(options=PipelineOptions(shlex.split(options))) as graph:
            # Pickled here: of a NamedTuple Beam would make a row of columns.
            elements = graph | "parts" >> beam.Create([pickle.dumps(job) for job in jobs])
            # Without a reshuffle a runner may give all parts to one worker.
            _ = elements | "spread" >> beam.Reshuffle() | "tokenise" >> beam.Map(_encode_pickled)
        for job in jobs:
            yield job.number, read_json(record_path(job))

    return work


def _encode_pickled(job: bytes) -> None:
    encode(pickle.loads(job))
