"""`pretrain import`: a work folder of a model that Hugging Face's library saved."""

from pretrain.commands.arguments import Import
from pretrain.commands.shared import check_alone
from pretrain.distributed.init import quiet_background_threads, say
from pretrain.interop.imports import import_folder


def run(arguments: Import) -> None:
    """Makes the work folder, and says what is in it."""
    check_alone()
    quiet_background_threads()
    import_folder(arguments.folder, arguments.workdir, say, arguments.generator, arguments.prepared)
