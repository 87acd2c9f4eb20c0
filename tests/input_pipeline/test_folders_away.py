"""A folder whose server is away for a while: what is done there is done again, and what lasts is raised."""

import errno
import io
import os

import pytest

from input_pipeline import away as folders
from input_pipeline import remote
from input_pipeline.away import contents, hurry, naming, passes, persistently
from input_pipeline.files import replaced, write_json, written_under
from input_pipeline.sources import images
from input_pipeline.sources.readers import Span


def away(number):
    return OSError(number, os.strerror(number), "/shared/run")


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that are made, instead of making them."""
    made, clock = [], [0.0]

    def sleep(seconds):
        made.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(folders.time, "sleep", sleep)
    monkeypatch.setattr(folders.time, "monotonic", lambda: clock[0])
    return made


def failing(times, error):
    def work():
        if next(tries) < times:
            raise error
        return "done"

    tries = iter(range(10**6))
    return work


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_folder_that_comes_back(pauses, capsys, number):
    assert persistently(failing(8, away(number))) == "done"
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 15]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("trying again for up to 180 s: ") and os.strerror(number) in said


def test_a_folder_that_stays_away(pauses):
    with pytest.raises(OSError, match="/shared/run"):
        persistently(failing(10**5, away(errno.EIO)))
    assert 165 < sum(pauses) <= 180


def test_what_was_waited_for_in_vain_is_waited_for_again_once_something_is_done(pauses):
    """A program that ends because its folder is away has rows to write there, a lock to give back."""
    for work in (failing(10**5, away(errno.EIO)), failing(1, away(errno.EIO))):
        with pytest.raises(OSError, match="/shared/run"):
            persistently(work)
    assert 165 < sum(pauses) <= 180
    assert persistently(lambda: "there") == "there"
    assert persistently(failing(1, away(errno.EIO))) == "done"


def test_a_hurry_within_another(pauses):
    with hurry():
        with hurry():
            pass
        with pytest.raises(OSError, match="/shared/run"):
            persistently(failing(1, away(errno.EIO)))
    assert persistently(failing(1, away(errno.EIO))) == "done"


@pytest.mark.parametrize("error", [away(errno.ENOSPC), away(errno.EACCES), away(errno.ENOENT), ValueError("no JSON")])
def test_what_lasts_is_not_tried_again(pauses, error):
    with pytest.raises(type(error)):
        persistently(failing(1, error))
    assert pauses == []


def test_tensorstore_buries_the_number():
    said = "Error writing \"state/d/x\": [os_error_code='{}'] [source locations]"
    assert passes(ValueError(said.format(errno.EIO)))
    assert not passes(ValueError(said.format(errno.ENOSPC)))
    assert not passes(ValueError("something else"))


class EndpointConnectionError(Exception):
    """As a store's package has one, which is no OSError."""


def test_a_store_that_cannot_be_reached_is_known_by_its_packages_names(pauses):
    assert persistently(failing(2, EndpointConnectionError("Could not connect"))) == "done"
    assert passes(ValueError("UNAVAILABLE: Error writing x")) and not passes(RuntimeError("UNAVAILABLE"))
    assert pauses == [0.5, 1]


class ClientError(Exception):
    """As botocore has one, of what S3 answers, and s3fs raises its own errors from."""


class HttpError(Exception):
    """As gcsfs has one."""

    def __init__(self, code):
        super().__init__(f"said, {code}")
        self.code = code


def test_a_store_that_is_too_busy_is_away():
    busy = OSError(errno.EBUSY, "Please reduce your request rate")
    assert not passes(busy)  # as a disk says it, of what stays so
    busy.__cause__ = ClientError("SlowDown")
    assert passes(busy)
    assert not passes(type("HttpError", (Exception,), {})("of another package"))
    assert passes(HttpError(503)) and passes(HttpError("429")) and not passes(HttpError(403))


def test_an_answer_that_breaks_off_is_of_a_store_that_is_away():
    """As aiohttp, botocore and urllib3 call it."""
    for name in ("ClientPayloadError", "HTTPClientError", "IncompleteReadError"):
        assert passes(type(name, (Exception,), {})("of an answer that breaks off"))
    assert not passes(ClientError("An error occurred (403) when calling the HeadObject operation: Forbidden"))


def test_an_upload_that_the_store_knows_no_longer_is_begun_again(tmp_path):
    """What is uploaded in parts is whole, and its answer lost, or has lapsed: 404 or 410, and no file is missing."""
    place = "http://store/upload/storage/v1/b/bucket/o?name=run/process_0"
    assert passes(FileNotFoundError(f"{place}&uploadType=resumable&upload_id=1")) and passes(HttpError(410))
    assert not passes(FileNotFoundError(place)) and not passes(FileNotFoundError("bucket/upload_id=1/process_0"))
    part = FileNotFoundError("The specified multipart upload does not exist.")
    assert not passes(part)
    part.__cause__ = ClientError("An error occurred (NoSuchUpload) when calling the UploadPart operation: it is gone")
    assert passes(part)
    with pytest.raises(FileNotFoundError) as missing:
        open(tmp_path / "upload_id=1", "rb").close()
    assert not passes(missing.value)


def test_a_file_is_read_again_and_named(pauses, tmp_path):
    """The system's error of a file that is open names none."""

    class Path:
        def __init__(self, fails):
            self.read_bytes = failing(fails, OSError(errno.ESTALE, os.strerror(errno.ESTALE)))

        def __str__(self):
            return "/shared/run/config.json"

    assert contents(Path(2)) == "done" and pauses == [0.5, 1]
    with pytest.raises(OSError, match="Stale file handle") as raised:
        contents(Path(10**5))
    assert raised.value.filename == "/shared/run/config.json"
    (tmp_path / "x").write_bytes(b"bytes")
    assert contents(tmp_path / "x") == b"bytes"


def test_work_within_work_is_given_up_once(pauses, capsys):
    """What was read within a read that is tried again was once waited for twice as long, and that said twice."""
    with pytest.raises(OSError, match="/shared/run"):
        persistently(lambda: persistently(failing(10**5, away(errno.EIO))))
    assert 165 < sum(pauses) <= 180
    assert capsys.readouterr().err.count("trying again") == 1


def test_work_that_is_named_is_given_up_once(pauses):
    nameless = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def work():
        with naming("/shared/run/train.csv"):
            persistently(failing(10**5, nameless))

    with pytest.raises(OSError, match=r"/shared/run/train\.csv"):
        persistently(work)
    assert 165 < sum(pauses) <= 180


def test_an_error_without_words_is_tried_again_too(pauses, capsys):
    assert persistently(failing(1, TimeoutError())) == "done"
    assert capsys.readouterr().err == "trying again for up to 180 s: TimeoutError\n"


def test_what_is_not_of_the_file_that_is_written_is_not_said_of_it(tmp_path):
    """A source whose server is away, or the user's own code in a network, while a store is written."""
    for number in (errno.ECONNREFUSED, errno.ESTALE):
        with pytest.raises(OSError, match=os.strerror(number)) as raised, replaced(tmp_path / "x"):
            raise OSError(number, os.strerror(number))
        assert raised.value.filename is None
    with pytest.raises(OSError, match="Stale") as raised, written_under(tmp_path, "data.store"):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    assert raised.value.filename == str(tmp_path)


def test_a_file_that_is_written_is_named(tmp_path, monkeypatch):
    """The system's error of a file that is open names none."""

    def failing(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error") as raised:
        write_json(tmp_path / "store.json", {})
    assert raised.value.filename == str(tmp_path / "store.json") and not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError) as raised:
        write_json(tmp_path / "gone" / "store.json", {})
    assert raised.value.filename == str(tmp_path / "gone" / "store.json")  # and not as it is called until it is whole


def test_a_copy_of_a_store_that_is_away_is_no_full_disk(tmp_path, monkeypatch):
    """It was told as a disk of this machine that takes no more."""
    path = remote.at("s3://bucket/run/model")

    def unanswered(self, mode="rb"):
        raise TimeoutError(errno.ETIMEDOUT, "no route", str(self))

    monkeypatch.setattr(remote.RemotePath, "_info", lambda self: {"size": 5})
    monkeypatch.setattr(remote.RemotePath, "open", unanswered)
    monkeypatch.setenv(remote.COPIES, str(tmp_path))
    with pytest.raises(TimeoutError) as raised:
        remote.local(path)
    assert raised.value.filename == "s3://bucket/run/model"


def test_an_image_whose_server_goes_while_it_is_read_is_named(monkeypatch):
    class Going(io.BytesIO):
        def read(self, size=-1):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(images, "raw_bytes", lambda path: Going())
    with pytest.raises(OSError, match="Stale file handle") as raised:
        next(images.file_documents(Span("/shared/x.png", "x.png", 0, None, 1), (2, 2, 3)))
    assert raised.value.filename == "/shared/x.png"


def test_a_thread_in_a_hurry_tries_nothing_again(pauses):
    with hurry(), pytest.raises(OSError, match="/shared/run"):
        persistently(failing(1, away(errno.EIO)))
    assert pauses == []
    assert persistently(failing(1, away(errno.EIO))) == "done"
