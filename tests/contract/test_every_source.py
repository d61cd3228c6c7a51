"""What every source promises before it has seen a file; formats are tested one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from corpuskit.errors import DataError
from corpuskit.formats.batch import REQUIRED
from corpuskit.stage import InputFile, Slice, Source
from tests.contract.strategies import make, of_kind

SOURCES = of_kind(Source)


def documents_of(source, file):
    pieces = source.slices(file, 1 << 20) or [Slice(0, file.size_bytes, file.size_bytes)]
    batches = (batch for piece in pieces for batch in source.read(file, piece, 1 << 20))
    return sum(len(batch.texts) for batch in batches)


@pytest.mark.parametrize("cls", SOURCES)
def test_declared_columns_have_types_and_names_of_their_own(cls):
    for name, kind in make(cls).declared().items():
        assert isinstance(kind, pa.DataType)
        assert name not in {*REQUIRED, "extra"}
        assert "." not in name


@pytest.mark.parametrize("cls", SOURCES)
def test_paths_are_required(cls):
    assert "paths" in cls.model_json_schema()["required"]


@pytest.mark.parametrize("cls", SOURCES)
def test_rejects_have_names(cls):
    assert {"too_long"} <= set(cls.rules)


@pytest.mark.parametrize("cls", SOURCES)
def test_a_missing_file_is_an_error_that_names_it(cls, tmp_path):
    source = make(cls)
    path = tmp_path / f"missing.{cls.stage_name()}"
    file = InputFile(0, "web", str(path), path.name, 100, "0")
    with pytest.raises((DataError, OSError), match=path.name):
        documents_of(source, file)


@pytest.mark.parametrize("cls", SOURCES)
def test_an_empty_file_has_no_documents_or_is_broken(cls, tmp_path):
    source = make(cls)
    path = tmp_path / f"empty.{cls.stage_name()}"
    path.touch()
    file = InputFile(0, "web", str(path), path.name, 0, "0")
    try:
        assert documents_of(source, file) == 0
    except DataError as error:  # an empty Parquet file is broken, an empty text file is not
        if path.name not in str(error):
            raise
