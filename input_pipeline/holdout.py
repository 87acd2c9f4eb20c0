"""Which documents are held out: those whose key hashes below the share."""

import hashlib

SPLITS = ("kept", "held")


def held_out(key: str, share: float) -> bool:
    """Whether the document `key` belongs to the held-out `share` (0 to 1): the same answer everywhere, always."""
    place = int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
    return place < share * 2**64
