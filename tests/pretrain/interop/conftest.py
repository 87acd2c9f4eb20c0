"""Fixtures of the tests of imports."""

import pytest

from pretrain.errors import UserError
from pretrain.interop import hf_import


@pytest.fixture
def refused(tmp_path):
    """`refused(folder, ...)`: the import of `folder` raises a sentence with all of these words, and leaves nothing."""

    def check(folder, *words):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(UserError) as error:
            hf_import.import_folder(str(folder), str(tmp_path / "new"))
        assert all(word in str(error.value) for word in words), error.value
        assert sorted(tmp_path.iterdir()) == before

    return check
