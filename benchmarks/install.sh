#!/usr/bin/env bash
# What installing corpuskit costs, cold: wall and CPU seconds, size on disk, and whether the result works.
#
# Usage: benchmarks/install.sh [PYTHON ...]     (default: python3)
#        EXTRAS="- train"      sets of extras to install; "-" is the core
#        INSTALLERS="pip uv"   each set is installed with each of them
#        SCRATCH=/tmp          where the environments live until they were measured
#
# Nothing comes from a cache, so a row holds download, build (fasttext) and unpacking. Needs a network.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
sets=${EXTRAS:-"- train"} installers=${INSTALLERS:-pip uv}
scratch=$(mktemp -d "${SCRATCH:-/tmp}/corpuskit-install.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
[ $# -gt 0 ] || set -- python3

# Every door of the core: import it, and use what has been known to break.
check() {
    (cd "$scratch" && "$1" -W error -) <<'PYTHON'
import importlib
import random
import tempfile
from pathlib import Path

for name in """click datasketch datatrove numba numpy pyarrow.parquet pydantic yaml regex rich.progress
               spacy.lang.en tokenizers xxhash zstandard corpuskit.errors""".split():
    importlib.import_module(name)

import fasttext
import numpy as np
from datatrove.data import Document
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter
from numba import njit

assert njit(lambda codes: codes.sum())(np.arange(4)) == 6
page = Document(text="The cat and the dog sat on a mat that they have. " * 20, id="0")
assert isinstance(GopherQualityFilter().filter(page), (bool, tuple))
assert isinstance(FineWebQualityFilter().filter(page), (bool, tuple))

rng = random.Random(0)
words = ["".join(rng.choices("abcdefghijklmnop", k=6)) for _ in range(1600)]
lines = [f"__label__{k} " + " ".join(rng.choices(words[600 * k : 600 * k + 1000], k=20))
         for k in (0, 1) for _ in range(500)]
with tempfile.TemporaryDirectory() as folder:
    texts = Path(folder) / "train.txt"
    texts.write_text("\n".join(lines) + "\n")
    # Each of eleven threads fills a tenth of the matrix, the last one the rest; with fewer it starts as garbage.
    model = fasttext.train_supervised(str(texts), thread=11, epoch=20, verbose=0)
# Not model.predict(): 0.9.3 asks NumPy 2 for a copy-free array that it cannot have.
(score, label), *_ = model.f.predict(" ".join(words[:20]) + "\n", 2, 0.0, "strict")
assert label == "__label__0", label
assert score > 0.9, score
PYTHON
}

install() { # INSTALLER ENVIRONMENT PYTHON WHAT
    "$3" -m venv "$2"
    if [ "$1" = pip ]; then
        "$2/bin/python" -m pip install --quiet --no-cache-dir -c "$root/constraints.txt" "$4"
    else
        "$2/bin/python" -m pip install --quiet --no-cache-dir -c "$root/constraints.txt" uv
        links=$("$2/bin/python" -m pip config list | sed -nE "s/^.*find-links='(.*)'$/\1/p" | head -n 1)
        UV_FIND_LINKS=${links// /,} "$2/bin/uv" pip install --quiet --no-cache --python "$2/bin/python" \
            -c "$root/constraints.txt" -b "$root/constraints.txt" "$4"
    fi
}

echo "| Python | extras | with | wall s | CPU s | MB | works |"
echo "|---|---|---|---|---|---|---|"
TIMEFORMAT="%R %U %S"
for python in "$@"; do
    for extras in $sets; do
        for installer in $installers; do
            environment=$scratch/venv what=$root
            [ "$extras" = - ] || what="$root[$extras]"
            { time install "$installer" "$environment" "$python" "$what" >"$scratch/log" 2>&1; } 2>"$scratch/time" ||
                { cat "$scratch/log" >&2; exit 1; }
            read -r wall user system <"$scratch/time"
            # Before the check: importing writes bytecode, which uv leaves to the first import.
            size=$(du -sm "$environment" | cut -f1)
            works=no
            check "$environment/bin/python" >"$scratch/log" 2>&1 && works=yes || cat "$scratch/log" >&2
            awk -v p="$("$python" -V | cut -d' ' -f2)" -v e="${extras/#-/(core)}" -v i="$installer" -v w="$wall" \
                -v u="$user" -v s="$system" -v m="$size" -v ok="$works" \
                'BEGIN { printf "| %s | %s | %s | %.0f | %.0f | %d | %s |\n", p, e, i, w, u + s, m, ok }'
            rm -rf "$environment"
        done
    done
done
