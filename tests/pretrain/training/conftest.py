"""Fixtures of tests that train in their own process."""

import pytest


@pytest.fixture
def no_cache(monkeypatch):
    """Programs compiled in this process are not written to the cache, which it would then keep using."""
    monkeypatch.setenv("LONGHAUL_CACHE", "")
