"""Sources of another run, added to a run in progress: ten cases of `added_sources`; refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loader_runs import part_of, write_plan, write_shards

from corpuskit.cli.main import main
from tests.loader.added_sources import check_case

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", range(10))
def test_added_sources_give_the_rows_of_a_run_planned_with_them(seed: int, tmp_path: Path) -> None:
    check_case(seed, tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one tokenizer: `a` of web, `b` of web and code, `wide` with longer rows."""
    folder = tmp_path_factory.mktemp("runs")
    whole = write_shards(folder / "whole", {"web": 90, "code": 70}, seq_len=8)
    write_plan(part_of(whole, folder / "a", {"web": "web"}), [(80, {"web": 1})])
    both = part_of(whole, folder / "b", {"web": "web", "code": "code"})
    write_plan(both, [(9, {"code": 1})], max_epochs=1)
    wide = write_shards(folder / "wide", {"code": 9}, seq_len=16)
    write_plan(wide, [(9, {"code": 1})])
    return folder


@pytest.mark.parametrize(
    ("other", "options", "message"),
    [
        ("wide", "--weight web=1 --weight code=1", "seq_len of {}/wide is 16, that of {}/a is 8."),
        ("b", "--weight web=1", "no weight names a source that only {}/b has. It has web, code;"),
        ("b", "--weight web2=1 --as web=web2", "the plan has rows of web of {}/b already"),
        ("b", "--weight c=1 --as cod=c", "the sources of {}/b are web, code. Give each of them at"),
        ("b", "--weight c=1 --as code=web", "the sources of {}/b are web, code. Give each of them"),
        ("b", "--weight ../c=1 --as code=../c", "--as '../c': a source's name must be made of"),
        ("b", "--weight law=1 --weight code=1", "the plan has no source 'law'. It has web, code."),
        ("b", "--weight code=1 --rows 71", "the plan takes 71 rows of source 'code', which has 70"),
        ("whole", "--weight code=1", "whole/mix/plan.json: no such file. Give the directory of a"),
    ],
)
def test_what_can_not_be_added_is_refused_by_name_and_nothing_is_written(
    runs: Path, capsys: pytest.CaptureFixture[str], other: str, options: str, message: str
) -> None:
    start = ["edit", "source", str(runs / "a"), "--from", str(runs / other), "--at-step", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*start, "-b", "8", *options.split()])
    assert ended.value.code == 2
    assert message.replace("{}", str(runs)) in capsys.readouterr().err
    assert not (runs / "a" / "edits").exists()


def test_an_added_shard_that_changed_is_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["edit", "source", str(runs / "a"), "--from", str(runs / "b"), "--at-step", "4"]
    (shard,) = (runs / "b" / "tokens" / "code").iterdir()
    content = bytearray(shard.read_bytes())
    content[500] ^= 1
    shard.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main([*start, "-b", "8", "--weight", "code=1"])
    assert ended.value.code == 3
    assert str(shard) in capsys.readouterr().err
    assert not [*(runs / "a").glob("edits/*.json")]
