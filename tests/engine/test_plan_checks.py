"""What can be known when the plan is made is refused by `plan`: one line, and nothing written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.engine import registry
from corpuskit.stages.annotators._fasttext import ClassifierSettings, train
from tests.engine.here import command_line

SAMPLES = Path(__file__).resolve().parents[2] / "sample_data"

LINES = "sources: {web: {jsonl: docs.jsonl, columns: {lang: string, score: float64}}}\n"
TOKENS = "{tokenize: {tokenizer: tokenizer.json}}, {pack: {seq_len: 64}}"


def stages(*given: str) -> str:
    return LINES + "stages:\n" + "".join(f"- {one}\n" for one in given)


def web(given: str) -> str:
    return f"sources:\n  web: {{{given}}}\n"


# (what a pipeline file holds, the value at which the message must stand, what it must say).
BAD_SOURCES = {
    "jsonl text": (web("jsonl: docs.jsonl, text_column: txt"), "txt", "Did you mean 'text'?"),
    "jsonl id": (web("jsonl: docs.jsonl, id_column: ident"), "ident", "no object has 'ident'"),
    "jsonl nested": (web("jsonl: docs.jsonl, text_column: meta"), "meta", "always an object"),
    "jsonl declared": (web("jsonl: docs.jsonl, columns: {lang: int64}"), "{lang", "not integer"),
    "jsonl absent": (web("jsonl: docs.jsonl, columns: {lnag: string}"), "{lnag", "'lang'?"),
    "jsonl array": (web("jsonl: array.json"), "web", "none of the first"),
    "jsonl is parquet": (web("jsonl: docs.parquet"), "web", "is a JSON object"),
    "jsonl none": (web("jsonl: none.jsonl"), "web", "no file matches"),
    "parquet text": (
        web("parquet: docs.parquet, text_column: txt"),
        "txt",
        "column 'txt' is missing",
    ),
    "parquet type": (
        web("parquet: docs.parquet, text_column: score"),
        "score",
        "is double, not text",
    ),
    "parquet id": (web("parquet: docs.parquet, id_column: ident"), "ident", "is missing"),
    "parquet nested": (web("parquet: docs.parquet, url_column: meta"), "meta", "not a string"),
    "parquet declared": (web("parquet: docs.parquet, columns: {lang: bool}"), "{lang", "not bool"),
    "huggingface place": (web("huggingface: ./nowhere"), "web", "./nowhere"),
    "huggingface split": (web("huggingface: dataset, split: test"), "web", "test"),
    "huggingface column": (web("huggingface: dataset, text_column: body"), "body", "is missing"),
    "text": (web("text: [docs.jsonl, s3://bucket/x]"), "web", "mixes local paths"),
    "wet": (web("wet: nothing-*.gz"), "web", "no file matches"),
    "warc": (web("warc: [link.warc]"), "web", "leads nowhere"),
}
BAD_STAGES = {
    "language keep": (stages("language: {keep: [eng_Ltan]}"), "[eng_Ltan]", "no 'eng_Ltan'"),
    "language own model": (
        stages("language: {model: own.ftz, keep: [en_Cyrl]}"), "[en_Cyrl]",
        "Did you mean 'eng_Latn'?"),
    "language scores": (
        stages("language: {model: own.ftz, min_scores: {deu_Ltan: 0.5}}"), "{deu",
        "'deu_Latn'?"),
    "language score file": (
        stages("language: {model: own.ftz, min_scores: scores.json}"), "scores.json",
        "'deu_Latn'?"),
    "language broken scores": (
        stages("language: {min_scores: broken.json}"), "broken.json", "is not JSON"),
    "language no model": (stages("language: {model: none.bin}"), "none.bin", "no such file"),
    "language cut model": (
        stages("language: {model: cut.ftz}"), "cut.ftz", "etch it again"),
    "language other model": (
        stages("language: {model: docs.parquet}"), "docs.parquet", "not a whole fastText model"),
    "quality label": (
        stages("quality: {model: own.ftz, label: good}"), "good", "has no 'good'"),
    "quality keep_labels": (
        stages("quality: {model: own.ftz, label: eng_Latn, keep_labels: {hq: 0}}"), "{hq",
        "has no 'hq'"),
    "quality model": (stages("quality: {model: none.bin, label: hq}"), "none.bin", "no such file"),
    "toxicity label": (
        stages("toxicity: {model: own.ftz, max_score: 0.5}"), "toxicity:", "has no 'toxic'"),
    "bad_words file": (stages("bad_words: {lists: none.txt}"), "none.txt", "none.txt"),
    "bad_words empty": (stages("bad_words: {lists: empty.txt}"), "empty.txt", "has no entry"),
    "bad_words latin": (stages("bad_words: {lists: latin.txt}"), "latin.txt", "no UTF-8"),
    "bad_words languages": (
        stages("language: {keep: [en, de]}",
               "bad_words: {lists: {en: words.txt}, language_column: language.label}"),
        "{en", "there is none for 'de'"),
    "bad_words column": (
        stages("bad_words: {entries: [x], language_column: score}"), "score", "holds no strings"),
    "c4_paragraphs": (stages("c4_paragraphs: {min_words: 3}"), "min_words:", "no parameter"),
    "c4_quality": (stages("c4_quality: {min_num_sentences: many}"), "many", "integer"),
    "datatrove class": (stages("datatrove: {step: datatrove.pipeline.filters.Nope}"),
                        "datatrove.pipeline", "has no 'Nope'"),
    "datatrove value": (
        stages("datatrove: {step: datatrove.pipeline.filters.RegexFilter, "
               "params: {regex_exp: '('}}"), "{regex_exp", "cannot be made"),
    "fineweb languages": (
        stages("language: {keep: [en, de]}",
               "fineweb_quality: {words: whitespace, per_language: configs}"),
        "configs", "no file for 'de'"),
    "gopher_quality languages": (
        stages("language: {keep: [en, fr]}",
               "gopher_quality: {words: whitespace, per_language: configs}"),
        "configs", "no file for 'fr'"),
    "gopher_quality file": (
        stages("language: {keep: [en]}",
               "gopher_quality: {words: whitespace, per_language: bad_configs}"),
        "bad_configs", "has no key 'min_words'"),
    "gopher_quality splitting": (
        stages("language: {model: own.ftz, keep: [eng_Latn]}",
               "gopher_quality: {per_language: odd_configs}"),
        "gopher_quality:", "splits 'tha'"),
    "gopher_repetition column": (
        stages("gopher_repetition: {per_language: configs, language_column: score}"),
        "score", "holds no strings"),
    "gopher_repetition folder": (
        stages("language: {keep: [en]}", "gopher_repetition: {per_language: nowhere}"),
        "nowhere", "has no file for any language"),
    "code_quality column": (
        stages("code_quality: {language_column: score}"), "score", "holds no strings"),
    "code_quality undeclared": (
        stages("code_quality: {language_column: path}"), "path", "columns: {path: string}"),
    "overlap_dedup bound": (stages("overlap_dedup: {max_overlap: 2}"), "2}", "less than or equal"),
    "perplexity model": (stages("perplexity: {model: nowhere.csv}"), "nowhere", "No such file"),
    "license name": (stages("license: {allow: [GPL 2]}"), "GPL 2", "an SPDX identifier"),
    "line_ratios bound": (stages("line_ratios: {max_digit_ratio: 2}"), "2", "less than or equal"),
    "symbol_lines symbol": (stages("symbol_lines: {symbols: ['--']}"), "'--'", "at most 1"),
    "madlad_quality bound": (
        stages("madlad_quality: {max_questionable_ratio: 2}"), "2", "less than or equal"),
    "threshold struct": (
        stages("threshold: {column: origin, min: 1}"), "origin", "holds no numbers"),
    "threshold text": (stages("threshold: {column: text, min: 1}"), "text,", "holds no numbers"),
    "threshold names": (
        stages("language", "threshold: {column: language.label, min: 1}"), "language.label,",
        "holds no numbers"),
    "threshold column": (stages("threshold: {column: scroe, min: 1}"), "scroe", "'score'?"),
    "threshold of others": (
        "sources: {web: {jsonl: docs.jsonl, columns: {score: float64}}, "
        "books: {jsonl: docs.jsonl}}\nstages:\n"
        "- threshold: {column: score, min: 1, sources: [books]}\n",
        "score, min", "which none of its sources declares"),
    "where of others": (
        "sources: {web: {jsonl: docs.jsonl, columns: {lang: string}}, books: {jsonl: docs.jsonl}}\n"
        "stages:\n- pii: {where: {lang: en}, sources: [books]}\n",
        None, "which none of its sources declares"),
    "threshold limits": (
        stages("threshold: {column: score, by: source, limits: {bokks: [0.5, null]}}"),
        "{bokks", "is never 'bokks'"),
    "threshold by": (
        stages("threshold: {column: score, by: origin, limits: {web: [0, null]}}"), "origin",
        "holds no strings"),
    "url_filter file": (
        stages("url_filter: {extra_urls: ['@none.txt']}"), "['@none", "none.txt"),
    "url_filter host": (
        stages("url_filter: {extra_domains: ['@urls.txt']}"), "url_filter:", "no domain or host"),
    "url_filter suffixes": (
        stages("url_filter: {suffix_list: empty.txt}"), "empty.txt", "has no entry"),
    "html": (stages("html: {extractor: bs4}"), "bs4", "must be"),
    "line_rules": (stages("line_rules: {max_digit_ratio: 3}"), "max_digit_ratio:", "parameter"),
    "pii": (stages("pii: {emails: shred}"), "emails:", "parameter"),
    "unicode": (stages("unicode: {form: NFX}"), "NFX", "must be"),
    "decontaminate file": (
        stages("decontaminate: {benchmarks: none.jsonl}"), "none.jsonl", "none.jsonl"),
    "decontaminate column": (
        stages("decontaminate: {benchmarks: docs.jsonl, question_column: ask}"),
        "docs.jsonl", "'ask'"),
    "decontaminate broken": (
        stages("decontaminate: {benchmarks: broken.json}"), "broken.json", "broken.json"),
    "decontaminate_ngrams file": (
        stages("decontaminate_ngrams: {benchmarks: none.jsonl}"), "none.jsonl", "none.jsonl"),
    "decontaminate_ngrams words": (
        stages("decontaminate_ngrams: {benchmarks: docs.jsonl, rule: chunks, min_words: 4}"),
        "4}", "below ngram 6. Set it to 6 or more"),
    "exact_dedup source": (stages("exact_dedup: {prefer: [wbe]}"), "[wbe]", "'web'?"),
    "exact_dedup column": (stages("exact_dedup: {column: score}"), "score", "holds no strings"),
    "exact_dedup url": (
        stages("exact_dedup: {column: url}"), "url}", "none of its sources has a url"),
    "exact_dedup against": (stages("exact_dedup: {against: [nowhere]}"), "[nowhere]", "nowhere"),
    "exact_dedup best": (
        stages("exact_dedup: {keep: {best: text}}"), "{best", "holds no numbers"),
    "line_dedup source": (stages("line_dedup: {prefer: [wbe]}"), "[wbe]", "'web'?"),
    "line_dedup scope": (stages("line_dedup: {scope: score}"), "score", "holds no strings"),
    "minhash_dedup scheme": (
        stages("minhash_dedup: {language: de}"), "de}", "takes words of all languages"),
    "minhash_dedup scope": (stages("minhash_dedup: {scope: origin}"), "origin", "no strings"),
    "minhash_dedup against": (
        stages("minhash_dedup: {against: [.]}"), "[.]", "no finished minhash_dedup"),
    "substring_dedup tokenizer": (
        stages("substring_dedup: {min_tokens: 50, tokenizer: broken.json}"), "broken.json",
        "broken.json"),
    "substring_dedup source": (stages("substring_dedup: {prefer: [wbe]}"), "[wbe]", "'web'?"),
    "mix weights": (
        stages("tokenize: {tokenizer: tokenizer.json}", "pack", "mix: {weights: {wbe: 2}}"),
        "{wbe", "'web'?"),
    "mix stages": (
        stages("tokenize: {tokenizer: tokenizer.json}", "pack",
               "mix: {stages: [{name: a, ratio: 1, sources: [wbe]}]}"), "[{name", "'web'?"),
    "percentile column": (stages("percentile: {columns: [text]}"), "[text]", "no numbers"),
    "percentile by": (
        stages("percentile: {columns: [score], by: score}"), "score}", "holds no strings"),
    "upsample column": (
        stages("upsample: {column: extra, points: [[0, 1]]}"), "extra", "holds no numbers"),
    "upsample source": (
        stages("upsample: {column: score, points: [[0, 1]], sources: [wbe]}"), "[wbe]", "'web'?"),
    "holdout": (stages("holdout: {ratio: 2}"), "2}", "less than 1"),
    "tokenize file": (
        stages("tokenize: {tokenizer: none.json}", "pack"), "none.json", "no such file"),
    "tokenize broken": (
        stages("tokenize: {tokenizer: broken.json}", "pack"), "broken.json", "broken.json"),
    "tokenize merges": (
        stages("tokenize: {tokenizer: merges.json}", "pack"), "merges.json", "can't open"),
    "tokenize eos": (
        stages("tokenize: {tokenizer: tokenizer.json, eos: END}", "pack"), "END", "END"),
    "pack alone": (stages("pack"), "pack", "tokenize.tokens"),
    "pack bands": (
        stages("tokenize: {tokenizer: tokenizer.json}",
               "pack: {bands: {column: text, edges: [1]}}"), "{column", "holds no numbers"),
    "shuffle alone": (stages("shuffle"), "shuffle", "after pack"),
    "shuffle bands": (
        stages("tokenize: {tokenizer: tokenizer.json}", "pack", "shuffle: {order: bands}"),
        "bands}", "needs bands"),
}  # fmt: skip
BAD_STAGES |= {
    "integers": (
        stages("c4_paragraphs: {min_paragraph_chars: 9223372036854775808}"),
        "9223372036854775808", "Set a smaller number"),
    "gopher_quality language": (
        stages("gopher_quality: {language: zz}"), "zz", "datatrove knows no 'zz'"),
    "a folder for a file": (
        stages("decontaminate: {benchmarks: folder.jsonl}"), "folder.jsonl", "directory"),
}  # fmt: skip
BAD_PLACES = {
    "output": (f"output: docs.jsonl/run\n{LINES}", "docs.jsonl/run", "is not a folder"),
    "foreign output": (f"output: dataset\n{LINES}", None, "not a run directory"),
    "input inside": (f"output: run\n{web('jsonl: run/docs.jsonl')}", None, "inside the output"),
    "slurm": (f"{LINES}executor: {{kind: slurm}}\n", "slurm}", "sbatch is not installed"),
}
CASES = {**BAD_SOURCES, **BAD_STAGES, **BAD_PLACES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A folder with inputs of every kind, good and broken."""
    made = tmp_path_factory.mktemp("plans")
    rows = [
        {"id": str(n), "text": f"Text {n}.", "lang": "en", "score": n / 9, "meta": {"a": n}}
        for n in range(9)
    ]
    (made / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (made / "array.json").write_text(json.dumps(rows, indent=1))
    pq.write_table(pa.Table.from_pylist(rows), made / "docs.parquet")
    (made / "dataset").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), made / "dataset/train.parquet")
    (made / "run").mkdir()
    (made / "folder.jsonl").mkdir()
    (made / "run/docs.jsonl").write_text(json.dumps(rows[0]) + "\n")
    (made / "run/plan.json").write_text("{}")
    (made / "link.warc").symlink_to("gone.warc")
    (made / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (made / "broken.json").write_text('{"model": ')
    fields = json.loads(tokenizer.read_bytes())
    fields["model"]["merges"].append(["zq", "qz"])
    (made / "merges.json").write_text(json.dumps(fields))
    (made / "scores.json").write_text('{"deu_Ltan": 0.8}')
    (made / "empty.txt").write_text("\n")
    (made / "latin.txt").write_bytes(b"caf\xe9\n")
    (made / "words.txt").write_text("slapdash\n")
    (made / "urls.txt").write_text("https://example.org/a\n")
    for name, content in {
        "configs/en.yml": "min_doc_words: 3\n",
        "bad_configs/en.yml": "min_words: 3\n",
        "odd_configs/eng_Latn.yml": "language: tha\n",
    }.items():
        (made / name).parent.mkdir()
        (made / name).write_text(content)
    texts = made / "lines.txt"
    texts.write_text("__label__eng_Latn the cat and the dog\n__label__deu_Latn der Hund und\n" * 9)
    train(texts, ClassifierSettings(dim=4, buckets=100)).save(made / "own.ftz")
    content = (made / "own.ftz").read_bytes()
    (made / "cut.ftz").write_bytes(content[:-40])
    return made


def plan(folder: Path, text: str):
    text = text if text.startswith("output:") else f"output: out\n{text}"
    (folder / "p.yaml").write_text(text)
    return text, command_line(folder, ["plan", "p.yaml"], {"PATH": ""})  # no sbatch


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_pipeline_is_refused_when_it_is_planned(folder, name):
    given, at, says = CASES[name]
    (folder / "p.yaml").touch()
    before = files(folder)
    text, done = plan(folder, given)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    assert says in done.stderr
    if at is not None:
        place = re.match(r"error: p\.yaml:(\d+):(\d+): ", done.stderr)
        assert place, done.stderr
        line = text.splitlines()[int(place[1]) - 1]
        assert line[int(place[2]) - 1 :].startswith(at), (done.stderr, line)
    assert files(folder) == before


def test_every_stage_has_a_bad_pipeline():
    tried = {name for given, *_ in CASES.values() for name in re.findall(r"\w+", given)}
    own = {name for name in registry.names() if registry.kind_of(name) != registry.THIRD_PARTY}
    assert own <= tried


def test_what_nobody_expected_is_one_line_that_says_what_was_worked_on(folder, monkeypatch):
    def fail(self: object, view: object) -> None:
        raise ValueError("no such\nthing")

    monkeypatch.setattr(registry.load("holdout"), "apply", fail)
    (folder / "p.yaml").write_text(f"output: broken\n{stages('holdout')}")
    done = command_line(folder, ["run", "p.yaml", "--quiet"])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "ValueError: no such thing (stage holdout, documents web/docs.jsonl#0" in done.stderr
    assert "corpuskit --traceback run p.yaml --quiet" in done.stderr
