"""What the first halves of objectives have in common, as most of them have it (`__init__.py` lists all they offer)."""


class Objective:
    """One text a row, its end tokens kept; a row is made of as many ids of text as it has tokens, of one at least."""

    bare = False
    two_texts = False
    segmented = False
    special: tuple[str, ...] = ()
    least = 1
    counted = False
    codes: tuple[str, ...] = ()

    def raw_length(self, length: int) -> int:
        return length

    def check(self, length: int) -> None:
        """Raises DataError where the task's settings ask for what rows of `length` cannot hold."""

    def check_sentinels(self, length: int, sentinels: int) -> None:
        """Raises DataError where a row of `length` takes more sentinels than there are."""
