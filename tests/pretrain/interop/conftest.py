"""Shared imports of small models."""

import hub
import pytest

from pretrain.errors import USER_ERRORS
from pretrain.interop.hf_import import import_folder


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """`theirs, workdir = imported(case)`: a folder of the case's model and its import, made once."""
    folders, root = {}, tmp_path_factory.mktemp("hub")

    def folders_of(case):
        if case not in folders:
            theirs, workdir = hub.make(root / case, case), root / f"{case}-imported"
            import_folder(str(theirs), str(workdir))
            folders[case] = theirs, workdir
        return folders[case]

    return folders_of


@pytest.fixture
def refuses(tmp_path):
    """`refuses(folder, key)`: the import raises an error that names `key` and makes nothing."""

    def check(folder, key, **options):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(USER_ERRORS) as error:
            import_folder(str(folder), str(tmp_path / "new"), **options)
        assert key in str(error.value)
        assert sorted(tmp_path.iterdir()) == before

    return check
