"""Parts of a token store made by an Apache Beam pipeline, on as many machines as its runner has.

The pipeline carries no text. Its elements are parts; a worker writes each with `encode` into the store's folder, its
record last, and the program that started the pipeline reads the records there. So the runner returns nothing, a
restarted worker makes the same files, and a killed pipeline resumes.
"""

import pickle
import shlex
from collections.abc import Iterator, Sequence

from input_pipeline.errors import DataError
from input_pipeline.io import read_json, write_json
from input_pipeline.token_store.build import Workers
from input_pipeline.token_store.writer import Job, encode, read_record, record_path


def pipeline(options: str) -> Workers:
    """Parts are made by the pipeline of `options`, such as "--runner=DirectRunner --direct_num_workers=2".

    Errors: DataError without Beam, or for unknown options and runners.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise DataError("--beam needs the package apache-beam. Run pip install -e '.[beam]'.") from None
    try:
        flags = shlex.split(options)
        parsed = PipelineOptions(flags)
        known = parsed.get_all_options()
        unknown = [name for name in parsed.get_all_options(retain_unknown_options=True) if name not in known]
        unknown += [flag for flag in flags if not flag.startswith("-")]
        beam.Pipeline(options=parsed)
    except (ValueError, AttributeError, ImportError) as error:
        raise DataError(
            f"--beam='{options}' describes no pipeline ({error}). See Beam's page of the runner."
        ) from error
    if unknown:
        raise DataError(f"--beam='{options}': unknown option {unknown[0]}. See Beam's page of the runner.")

    def work(jobs: Sequence[Job]) -> Iterator[tuple[int, dict]]:
        for job in jobs:
            _failure_path(job).unlink(missing_ok=True)
        with beam.Pipeline(options=PipelineOptions(flags)) as graph:
            elements = graph | "parts" >> beam.Create([pickle.dumps(job) for job in jobs])
            # Without a reshuffle a runner may give all parts to one worker.
            _ = elements | "spread" >> beam.Reshuffle() | "tokenise" >> beam.Map(_make)
        for job in jobs:
            yield job.number, _record(job)

    return work


def _make(pickled: bytes) -> None:
    """Makes one part in a worker. A DataError is left in a file, since a runner would only try again."""
    job = pickle.loads(pickled)
    try:
        encode(job)
    except DataError as error:
        write_json(_failure_path(job), {"message": str(error)})


def _failure_path(job: Job):
    return record_path(job).with_suffix(".failed")


def _record(job: Job) -> dict:
    """The record of a part. Errors: DataError if a worker could not make it."""
    failure = _failure_path(job)
    if failure.is_file():
        message = read_json(failure)["message"]
        failure.unlink()
        raise DataError(message)
    if (record := read_record(record_path(job))) is None:
        raise DataError(f"--beam left no part in {job.folder}. Set --workdir and data.store that its workers share.")
    return record
