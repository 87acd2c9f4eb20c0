"""The parts of a token store made by an Apache Beam pipeline: on as many machines as its runner has.

The pipeline knows no text. Its elements are parts, each of which a worker makes by itself (`parts.encode`) and leaves
in the store's folder, its record last; the program that started the pipeline reads the records there. So the runner has
nothing to bring back, a worker that is started again makes the same files, and a pipeline that was killed goes on.
"""

import pickle
import shlex
from collections.abc import Iterator, Sequence

from input_pipeline.errors import DataError
from input_pipeline.files import read_json, write_json
from input_pipeline.token_store import parts
from input_pipeline.token_store.parts import Job
from input_pipeline.token_store.workers import Workers

SHOWN = 200  # characters of a runner's own message


def pipeline(options: str) -> Workers:
    """Parts are made by the pipeline that `options` describes, such as "--runner=DirectRunner --direct_num_workers=2".

    Errors: DataError where Beam is not installed, or knows no such option or runner.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise DataError("--beam needs the package apache-beam; in the clone, pip install -e '.[beam]'") from None
    flags = _words(options)
    told = PipelineOptions(flags)
    known = told.get_all_options()
    unknown = [name for name in told.get_all_options(retain_unknown_options=True) if name not in known]
    if unknown:
        raise DataError(
            f"--beam='{options}' has an option that neither Beam nor its runners know: --{unknown[0]}; see Beam's page "
            "of the runner"
        )
    try:
        beam.Pipeline(options=told)
    except (ValueError, AttributeError, ImportError) as error:
        raise DataError(
            f"--beam='{options}' describes no pipeline ({_said(error)}); see Beam's page of the runner"
        ) from None

    def work(jobs: Sequence[Job]) -> Iterator[tuple[int, dict]]:
        for job in jobs:
            _failure_of(job).unlink(missing_ok=True)
        try:
            with beam.Pipeline(options=PipelineOptions(flags)) as made:
                elements = made | "parts" >> beam.Create([pickle.dumps(job) for job in jobs])
                apart = elements | "apart" >> beam.Reshuffle()  # else a runner may give all of them to one worker
                _ = apart | "tokenise" >> beam.Map(_make)
        except Exception as error:  # a runner raises what it likes
            raise DataError(
                f"the Beam pipeline that tokenised '{jobs[0].source.spec}' failed ({_said(error)}); mend that and run "
                "again: what it had finished is kept"
            ) from error
        for job in jobs:
            _check(job)
            yield job.number, parts.recorded(job)

    return work


def _words(options: str) -> list[str]:
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise DataError(f"--beam='{options}' cannot be read ({error}); write it as on a command line") from None
    for word in words:
        if not word.startswith("-"):
            raise DataError(f"--beam='{options}' has '{word}', which is no option; write --NAME=VALUE")
    return words


def _make(pickled: bytes) -> None:
    """Done by a worker. What is wrong with the text is left for the one that started the pipeline: trying again,
    as runners do, would not help."""
    job = pickle.loads(pickled)
    try:
        parts.encode(job)
    except DataError as error:
        write_json(_failure_of(job), {"message": str(error)})


def _failure_of(job: Job):
    return parts.record_of(job).with_suffix(".failed")


def _check(job: Job) -> None:
    """Raises DataError where a worker could not make a part."""
    failure = _failure_of(job)
    if failure.is_file():
        message = read_json(failure)["message"]
        failure.unlink()
        raise DataError(message)
    if parts.recorded(job) is None:
        raise DataError(
            f"the Beam pipeline ended, but its workers left no part {job.number} in {job.folder}; give a --workdir and "
            "a data.store that the workers reach too, such as a shared disk, gs:// or s3://"
        )


def _said(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1].strip()[:SHOWN]
