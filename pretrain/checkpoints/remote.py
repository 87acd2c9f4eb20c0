"""Checkpoints in an object store: what Orbax is told so that it writes and reads them there.

Orbax writes arrays to `gs://` with TensorStore's own driver, and finishes a checkpoint by a file, since nothing can be
renamed there. Of `s3://` it knows neither, though TensorStore has a driver for it: `build_kvstore_tspec`, which
describes to TensorStore where arrays lie, takes such a path for a relative one. It asks three functions of its modules,
which `reaches_s3` makes answer for S3 too.
"""

import os

import orbax.checkpoint as ocp
from orbax.checkpoint._src.path import atomicity, gcs_utils
from orbax.checkpoint._src.serialization import tensorstore_utils

from pretrain.errors import UserError
from pretrain.workdir import Workdir

S3, GS = "s3://", "gs://"
ASKED = (
    (tensorstore_utils, "_use_gcs_driver"),
    (tensorstore_utils, "_normalize_path"),
    (gcs_utils, "get_kvstore_for_gcs"),
)


def of_items(workdir: Workdir) -> dict:
    """Arguments of the CompositeCheckpointHandler of a folder's checkpoints."""
    if not workdir.remote:
        return {}
    return {"composite_options": ocp.CompositeOptions(temporary_path_class=atomicity.CommitFileTemporaryPath)}


def of_writer(workdir: Workdir) -> dict:
    """Arguments of the AsyncCheckpointer of a folder's checkpoints."""
    if not workdir.remote:
        return {}
    reaches_s3()
    return {"temporary_path_class": atomicity.CommitFileTemporaryPath}


def reaches_s3() -> None:
    """Lets Orbax describe `s3://` to TensorStore. Errors: UserError where this Orbax asks other functions."""
    if not all(hasattr(module, name) for module, name in ASKED):
        raise UserError(
            "the installed orbax-checkpoint keeps no checkpoints in s3://, nor can it be made to; install 0.12, or "
            "give a --workdir on a disk, and data.store in s3:// where the text is to be there"
        )
    if getattr(tensorstore_utils, "_reaches_s3", False):
        return
    uses, normal, described = (getattr(module, name) for module, name in ASKED)

    def uses_driver(directory: str) -> bool:
        return directory.startswith(S3) or uses(directory)

    def normalised(path: str) -> str:
        return S3 + os.path.normpath(path.removeprefix(S3)) if path.startswith(S3) else normal(path)

    def description(path: str) -> dict:
        if not path.startswith(S3):
            return described(path)
        bucket, _, key = path.removeprefix(S3).partition("/")
        place = {"endpoint": os.environ.get("AWS_ENDPOINT_URL"), "aws_region": os.environ.get("AWS_REGION")}
        if "AWS_ACCESS_KEY_ID" in os.environ:  # else it says on standard error which files it looked for first
            place["aws_credentials"] = {"type": "environment"}
        return {"driver": "s3", "bucket": bucket, "path": key} | {name: value for name, value in place.items() if value}

    for (module, name), answer in zip(ASKED, (uses_driver, normalised, description), strict=True):
        setattr(module, name, answer)
    tensorstore_utils._reaches_s3 = True
