"""`pretrain export`: a folder that Hugging Face's library loads, of a checkpoint of a run."""

from pretrain.commands.arguments import Export
from pretrain.commands.shared import check_alone
from pretrain.distributed.init import quiet_background_threads, say
from pretrain.interop.exports import export_folder


def run(arguments: Export) -> None:
    """Makes the folder, and says what is in it."""
    check_alone()
    quiet_background_threads()
    export_folder(arguments.workdir, arguments.folder, arguments.step, say, arguments.part, arguments.average)
