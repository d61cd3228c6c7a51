"""Gather real text from this machine, with a pipeline to run on it.

    python sample_data/gather.py DIR [--max-mb 40]

Reads what comes with the system, Python and its packages, not your own files: manual pages,
documentation, docstrings, code. Writes sources, a tokenizer trained on them and DIR/pipeline.yaml.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import gzip
import hashlib
import importlib.metadata
import io
import json
import re
import sys
import sysconfig
import tokenize
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.errors import CorpuskitError, UsageError
from corpuskit.stages.sequences.tokenize.tools import train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SHARD_BYTES = 16 << 20
MAX_FILE_BYTES = 4 << 20
MIN_CHARS = 200
"""Shorter texts are left out: aliases, stubs, empty modules."""

VOCAB_SIZE = 8192
MAN_FOLDERS = ("/usr/share/man", "/usr/local/share/man", "/opt/homebrew/share/man")
DOC_FOLDERS = ("/usr/share/doc", "/usr/local/share/doc")
DOC_NAMES = re.compile(
    r"(readme|news|changelog|changes|copyright|license|licence|copying|authors|faq|todo|history)"
    r"[^/]*(\.gz)?$|\.(txt|md|rst)(\.gz)?$",
    re.IGNORECASE,
)
LICENSE_NAMES = re.compile(r"(licen[cs]e|copying|notice)[^/]*$", re.IGNORECASE)

NOTE = (
    "These texts belong to their authors and come under many licences; the column `license` holds "
    "what a package says about itself. Use them here; read the licences before you hand them on."
)


class Found(NamedTuple):
    """One text, where it was, and what its package says about its licence."""

    id: str
    text: str
    path: str
    package: str
    license: str


@dataclasses.dataclass(frozen=True)
class Gathered:
    """What one kind of place gave: a source of the pipeline."""

    name: str
    what: str
    pattern: str
    num_docs: int
    text_bytes: int


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of text: its source name, what it is, its format and where it comes from."""

    name: str
    what: str
    format: str
    find: Callable[[], Iterator[Found]]


def gather(
    folder: Path, max_bytes: int, progress: Callable[[str], None] = lambda message: None
) -> list[Gathered]:
    """Write what this machine has to read as sources below `folder`, and a pipeline for them.

    Reads what comes with the system, Python and its packages, not the user's own files. Each kind
    of text gets its share of `max_bytes`, and what the kinds before it left. `folder` then holds
    `<kind>/`, a tokenizer.json trained on all of it, and pipeline.yaml.

    Raises:
        UsageError: the folder holds something already, or the machine has nothing to read.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder}: the folder is not empty. Name a new one.")
    gathered: list[Gathered] = []
    for place, kind in enumerate(KINDS):
        share = (max_bytes - sum(one.text_bytes for one in gathered)) // (len(KINDS) - place)
        found = _write(folder, kind, share)
        progress(f"{kind.name}: {found.num_docs:,} documents, {found.text_bytes / 1e6:,.1f} MB")
        gathered += [found] if found.num_docs else []
    if not gathered:
        raise UsageError("this machine has no text that is known here. Use sample_data/ instead.")
    folders = [folder / one.name for one in gathered]
    train_tokenizer(folders, folder / "tokenizer.json", vocab_size=VOCAB_SIZE)
    progress("tokenizer.json: trained")
    (folder / "pipeline.yaml").write_text(_pipeline(folder, gathered), "utf-8")
    return gathered


def _write(folder: Path, kind: Kind, max_bytes: int) -> Gathered:
    """Write the texts of one kind in shards of about SHARD_BYTES."""
    home = folder / kind.name
    shard: list[Found] = []
    waiting = total = num_docs = number = 0
    for found in kind.find():
        size = len(found.text.encode("utf-8", "replace"))
        if size > max_bytes // 20:
            continue
        if total + size > max_bytes:
            break
        if waiting and waiting + size > SHARD_BYTES:
            _write_shard(home / f"{kind.name}-{number:03d}.{kind.format}", shard)
            shard, waiting, number = [], 0, number + 1
        shard.append(found)
        waiting, total, num_docs = waiting + size, total + size, num_docs + 1
    if shard:
        _write_shard(home / f"{kind.name}-{number:03d}.{kind.format}", shard)
    return Gathered(kind.name, kind.what, f"{home}/*.{kind.format}", num_docs, total)


def _write_shard(path: Path, rows: list[Found]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pa.table({name: [getattr(row, name) for row in rows] for name in Found._fields})
        pq.write_table(table, path, compression="zstd", row_group_size=1000)
        return
    import zstandard

    lines = (json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(zstandard.compress("".join(lines).encode()))


def _pipeline(folder: Path, gathered: Iterable[Gathered]) -> str:
    """Return a pipeline file; lenient bounds, because a third of the text is code."""
    lines = [
        f"# Made by sample_data/gather.py. Run it with: corpuskit run {folder / 'pipeline.yaml'}"
    ]
    lines += ["name: machine", f"output: {json.dumps(str(folder / 'run'))}", "seed: 0", "sources:"]
    for one in gathered:
        kind = "parquet" if one.pattern.endswith(".parquet") else "jsonl"
        lines.append(f"  {one.name}: {{{kind}: {json.dumps(one.pattern)}, id_column: id}}")
    lines += [
        "stages:",
        "  - gopher_quality: {min_words: 30, min_alpha_words_ratio: 0.4, min_stop_words: 0}",
        "  - exact_dedup",
        "  - minhash_dedup",
        "  - pii",
        "  - mix",
        f"  - tokenize: {{tokenizer: {json.dumps(str(folder / 'tokenizer.json'))}}}",
        "  - pack: {seq_len: 1024}",
        "  - shuffle",
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- where texts are


def find_system() -> Iterator[Found]:
    """Yield manual pages, language by language, and what packages of the system say."""
    for top in map(Path, MAN_FOLDERS):
        for path in _files(top, lambda name: "/man" in name):
            text = roff_text(_read(path) or "")
            name = path.relative_to(top).as_posix().removesuffix(".gz")
            yield from _found(f"man/{name}", text, path, "", "")
    for top in map(Path, DOC_FOLDERS):
        for path in _files(top, lambda name: DOC_NAMES.search(name) is not None):
            name = path.relative_to(top).as_posix().removesuffix(".gz")
            yield from _found(f"doc/{name}", _read(path) or "", path, name.split("/")[0], "")


def find_packages() -> Iterator[Found]:
    """Yield descriptions, documents and licences of the installed Python packages."""
    for package in _packages():
        name, terms = package.metadata["Name"], _license(package)
        description = str(package.metadata.json.get("description", ""))
        place = Path(str(package.locate_file("")))
        yield from _found(f"package/{name}/description", description, place, name, terms)
        for file in sorted(package.files or [], key=str):
            if LICENSE_NAMES.search(str(file)) or file.suffix in {".md", ".rst"}:
                path = Path(str(package.locate_file(file)))
                yield from _found(f"package/{name}/{file}", _read(path) or "", path, name, terms)


def find_docstrings() -> Iterator[Found]:
    """Yield the docstrings of each module of the standard library and of installed packages."""
    library = Path(sysconfig.get_paths()["stdlib"])
    owners = dict.fromkeys(_modules(library), ("python", "PSF-2.0"))
    for package in _packages():
        owner = (package.metadata["Name"], _license(package))
        for file in package.files or []:
            if file.suffix == ".py" and "test" not in str(file):
                owners[Path(str(package.locate_file(file)))] = owner
    for path in _spread(owners):
        name, terms = owners[path]
        yield from _found(f"docstrings/{path}", _docstrings(path), path, name, terms)


def find_code() -> Iterator[Found]:
    """Yield the modules of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in _modules(library):
        name = path.relative_to(library).as_posix()
        yield from _found(f"stdlib/{name}", _source(path) or "", path, "python", "PSF-2.0")


KINDS = (
    Kind("system", "manual pages and documentation of system packages", "parquet", find_system),
    Kind("packages", "READMEs, documents, licences of Python packages", "parquet", find_packages),
    Kind("docstrings", "docstrings of Python modules", "jsonl.zst", find_docstrings),
    Kind("code", "the standard library of Python", "jsonl.zst", find_code),
)  # fmt: skip


def _found(name: str, text: str, path: Path, package: str, terms: str) -> Iterator[Found]:
    text = text.replace("\0", "").strip()
    if len(text) >= MIN_CHARS:
        yield Found(name, text, str(path), package, terms)


def _files(top: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yield files below a folder; links are left out, they lead to other pages."""
    for path in _spread(top.rglob("*")):
        if wanted(path.as_posix()) and path.is_file() and not path.is_symlink():
            yield path


def _spread(paths: Iterable[Path]) -> list[Path]:
    """Return paths in a fixed order whose beginning is a sample of all folders and name families.

    One program can bring thousands of pages (`git-*`, `gcloud_*`); they take turns with the others.
    """
    taken: Counter[tuple[Path, str]] = Counter()
    turns = []
    for path in sorted(paths):
        family = (path.parent, re.split(r"[-_.]", path.name)[0])
        taken[family] += 1
        mark = hashlib.blake2b(str(path).encode(), digest_size=8).digest()
        turns.append((taken[family], mark, path))
    return [path for _, _, path in sorted(turns)]


def _modules(library: Path) -> Iterator[Path]:
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}
    for path in _spread(library.rglob("*.py")):
        if not left_out & set(path.relative_to(library).parts):
            yield path


def _packages() -> list[importlib.metadata.Distribution]:
    """Return installed packages by name, without those that stand for a folder of the user's."""
    known = {one.metadata["Name"]: one for one in importlib.metadata.distributions()}
    named = [known[name] for name in sorted(name for name in known if name)]
    return [one for one in named if '"dir_info"' not in (one.read_text("direct_url.json") or "")]


def _license(package: importlib.metadata.Distribution) -> str:
    """Return what the package declares, in one line."""
    says = package.metadata.json
    classifiers = says.get("classifier", [])
    kinds = [one.split(" :: ")[-1] for one in classifiers if one.startswith("License")]
    declared = says.get("license_expression") or ", ".join(kinds) or says.get("license") or ""
    return " ".join(str(declared).split())[:200]


def _read(path: Path) -> str | None:
    """Return the text of a small file, decompressed; None if it cannot be read as UTF-8."""
    with contextlib.suppress(OSError, EOFError, zlib.error, UnicodeDecodeError):
        if path.stat().st_size <= MAX_FILE_BYTES:
            content = path.read_bytes()
            return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return None


def _source(path: Path) -> str | None:
    """Return the text of a Python module in the encoding that it declares."""
    with contextlib.suppress(OSError, SyntaxError, UnicodeDecodeError):
        if path.stat().st_size <= MAX_FILE_BYTES:
            content = path.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            return content.decode(encoding)
    return None


def _docstrings(path: Path) -> str:
    """Return all docstrings of a module, one behind the other."""
    text = _source(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # others' invalid escapes are no concern of ours
            tree = ast.parse(text or "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(doc for doc in found if doc)


# ---------------------------------------------------------------- manual pages as plain text

SPECIAL = {
    "em": "\u2014", "en": "\u2013", "hy": "-", "bu": "\u2022", "aq": "'", "dq": '"', "ga": "`",
    "lq": "\u201c", "rq": "\u201d", "oq": "\u2018", "cq": "\u2019", "co": "\u00a9", "rg": "\u00ae",
    "ti": "~", "ha": "^", "rs": "\\", "sl": "/", "ba": "|", "mu": "\u00d7", "+-": "\u00b1",
    "<=": "\u2264", ">=": "\u2265", "->": "\u2192", "<-": "\u2190", "de": "\u00b0", "mc": "\u00b5",
    "tm": "\u2122",
}  # fmt: skip
SINGLE = {
    "e": "\\",
    "-": "-",
    " ": " ",
    "~": " ",
    "0": " ",
    "'": "'",
    "`": "`",
    ".": ".",
    "\\": "\\",
}

HEADINGS = {"SH", "SS", "Sh", "Ss"}
BREAKS = set("PP P LP TP TQ IP HP Pp It sp br Bl El nf fi EX EE".split())
WORDS = set(
    "B I SM SB Nm Ar Cm Fl Op Xr Em Sy Pa Nd Li Va Dq Sq Ql Fn Dv Ev Ic UR MT Lk Mt Ns Pq Fa Ft "
    "No".split()
)
JOINED = {"BR", "RB", "BI", "IB", "IR", "RI"}
"""Macros that set their arguments in turn in two fonts, without spaces between."""

_ESCAPE = re.compile(
    r"""\\(?:
        f(?:\[[^]]*\]|\(..|.)            # font
      | s[+-]?(?:\[[^]]*\]|\(..|\d\d?)   # size
      | [nm*](?:\[[^]]*\]|\(..|.)        # register, colour, string
      | \[(?P<long>[^]]*)\] | \((?P<pair>..)
      | [hvwlLoXZ]'[^']*'                # motions and drawings
      | ["#].*                           # comment
      | (?P<single>.)
    )""",
    re.VERBOSE,
)
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')


def roff_text(source: str) -> str:
    """Return the text of a manual page: headings on lines of their own, paragraphs joined.

    Tables, conditionals and definitions of macros are left out. An alias (`.so`) has no text.
    """
    paragraphs: list[list[str]] = [[]]
    until = ""
    for line in source.splitlines():
        if until:
            until = "" if line.strip() == until else until
        elif re.match(r"['.]\s*\w", line):
            name, _, rest = line[1:].strip().partition(" ")
            until = {"de": "..", "ig": "..", "TS": ".TE", "EQ": ".EN"}.get(name, "")
            _add_macro(paragraphs, name, rest)
        elif not line.strip():
            paragraphs.append([])
        elif line[0] not in "'.":
            paragraphs[-1].append(_without_markup(line))
    blocks = (" ".join(" ".join(words).split()) for words in paragraphs)
    return "\n\n".join(block for block in blocks if block)


def _add_macro(paragraphs: list[list[str]], name: str, rest: str) -> None:
    arguments = [_without_markup((a or b).replace('""', '"')) for a, b in _ARGUMENT.findall(rest)]
    if name in HEADINGS:
        paragraphs += [[" ".join(arguments)], []]
    elif name in BREAKS:
        paragraphs.append([])
        if name in {"IP", "It"} and arguments:
            paragraphs[-1].append(arguments[0] if name == "IP" else " ".join(arguments))
    elif name in JOINED:
        paragraphs[-1].append("".join(arguments))
    elif name in WORDS:
        paragraphs[-1].append(" ".join(arguments))


def _without_markup(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match["long"] or match["pair"]
        if name is not None:
            if re.fullmatch(r"u[0-9A-F]{4,5}", name):
                return chr(int(name[1:], 16))
            return SPECIAL.get(name, "")
        return SINGLE.get(match["single"] or "", "")

    return _ESCAPE.sub(replace, text)


def main(arguments: list[str] | None = None) -> int:
    """Gather texts and say what was found; return the exit code."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=summary, epilog=details.partition("\n\n")[2])
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    parser.add_argument("--max-mb", type=int, default=40, help="most text, in MB (default: 40)")
    options = parser.parse_args(arguments)
    folder = options.folder
    try:
        gathered = gather(
            folder, options.max_mb * 1_000_000, lambda line: print(line, file=sys.stderr)
        )
    except CorpuskitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    width = max(len(source.name) for source in gathered)
    for source in gathered:
        size = f"{source.text_bytes / 1e6:,.1f} MB"
        print(f"{source.name:{width}}  {source.num_docs:>7,} documents  {size:>9}  {source.what}")
    print(f"\n{NOTE}\n\nNext: corpuskit run {folder / 'pipeline.yaml'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
