"""`pretrain import` and `pretrain export`: models from and to Hugging Face's library."""

from pretrain.commands.arguments import Export, Import
from pretrain.distributed.init import print_on_host0, quiet_libraries, read_cluster_environment
from pretrain.errors import UserError
from pretrain.interop.hf_export import export_folder
from pretrain.interop.hf_import import import_folder


def run(arguments: Import | Export) -> None:
    """Makes the work folder or the Hugging Face folder, and reports what is in it."""
    if (process := read_cluster_environment()) and process[1] != 1:
        raise UserError("LONGHAUL_COORDINATOR: import and export run in one process. Unset it.")
    quiet_libraries()
    if isinstance(arguments, Import):
        import_folder(arguments.folder, arguments.workdir, print_on_host0, arguments.generator, arguments.prepared)
    else:
        export_folder(
            arguments.workdir, arguments.folder, arguments.step, print_on_host0, arguments.part, arguments.average
        )
