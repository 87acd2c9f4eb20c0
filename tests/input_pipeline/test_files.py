"""What is left of files and folders where something fails on the way."""

import pytest

from input_pipeline.files import filled


def test_a_link_that_stays_empty_hides_no_mistake(tmp_path):
    """What is linked cannot be removed as a folder is."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tokenizer").symlink_to("elsewhere")
    with pytest.raises(ValueError, match="of the text"), filled(tmp_path / "tokenizer"):
        raise ValueError("of the text")
    assert (tmp_path / "tokenizer").is_dir()
