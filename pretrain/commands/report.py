"""`pretrain report`: one page about one or several runs."""

from pretrain import workdir
from pretrain.commands.arguments import Report
from pretrain.errors import UserError, reason
from pretrain.report.history import read_run


def run(arguments: Report) -> None:
    """Writes the page, which needs no network and no other file."""
    if not arguments.folders:
        raise UserError("report: no run. Give work folders: pretrain report runs/a runs/b.")
    runs = [read_run(folder, "report") for folder in arguments.folders]
    try:
        from pretrain.report import page

        text = page.render(runs)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] != "plotly":
            raise
        raise UserError("report needs the package plotly. Run pip install -e '.[report]'.") from None
    try:
        workdir.write(workdir.open_path(arguments.out), text.encode())
    except OSError as error:
        raise UserError(f"--out={arguments.out}: {reason(error)}. Name a file in a folder that exists.") from error
    print(f"{arguments.out}: {len(runs)} run{'s' * (len(runs) != 1)}, {len(text.encode()) / 1e6:.1f} MB")
