"""Lines of the training loop: what is read top to bottom, and the rooms beside it.

Lines of code are those with a token on them that is neither comment nor docstring.

    python benchmarks/train_size.py
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

TRAIN = Path(__file__).resolve().parents[1] / "corpuskit" / "train"
CORE = ("loop", "model", "attention", "parallel", "optim", "setup",
        "checkpoint", "record", "guard", "recovery", "watch")  # fmt: skip
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def count(path: Path) -> tuple[int, int]:
    """Return all lines of a module, and those of code."""
    text = path.read_text("utf-8")
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(text.splitlines()), len(code)


def main() -> None:
    counts = {str(path.relative_to(TRAIN))[:-3]: count(path) for path in TRAIN.rglob("*.py")}
    beside = sorted(name for name in counts if name not in CORE)
    for title, names in (("The loop", CORE), ("Beside it", beside)):
        print(f"{title:28}{'lines':>8}{'code':>8}")
        for name in names:
            if counts[name][0]:
                print(f"  {name:26}{counts[name][0]:8,}{counts[name][1]:8,}")
        lines, code = (sum(counts[name][place] for name in names) for place in (0, 1))
        print(f"{'':28}{lines:8,}{code:8,}\n")


if __name__ == "__main__":
    main()
