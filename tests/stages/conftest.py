"""What tests of stages share: compiled kernels, a tokenizer of bytes, folders of runs."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.stages.sequence_runner import save_byte_tokenizer

# A kernel's first call compiles it, which hypothesis would take for a slow test.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory):
    """The path of a tokenizer with a token per byte."""
    return save_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory):
    """A function that makes a folder, for tests that hypothesis calls many times."""
    return lambda: tmp_path_factory.mktemp("run")
