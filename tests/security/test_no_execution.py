"""No module unpickles, evaluates or hands text to a shell, and YAML is loaded safely."""

from __future__ import annotations

import ast

import pytest

from corpuskit.engine.config import read_pipeline
from corpuskit.errors import ConfigError
from tests.conftest import ROOT

MODULES = sorted((ROOT / "corpuskit").rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "np.load", "tempfile.mktemp",
    "pd.read_pickle", "subprocess.getoutput",
}  # fmt: skip


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / "corpuskit")))
def test_a_module_runs_nothing_that_it_reads(path):
    tree = ast.parse(path.read_text("utf-8"))
    imported, called = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call):
            called.add(ast.unparse(node.func))
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                assert not (keyword.arg in {"shell", "allow_pickle"} and value), ast.unparse(node)
    assert not imported & FORBIDDEN_MODULES
    assert not called & FORBIDDEN_CALLS


@pytest.mark.parametrize(
    "value",
    ["!!python/object/apply:os.system [id]", "!!python/name:os.system ''", "!include /etc/passwd"],
)
def test_a_pipeline_file_makes_no_objects(tmp_path, value):
    path = tmp_path / "p.yaml"
    path.write_text(f"output: {value}\nsources: {{web: {{jsonl: a}}}}\n")
    with pytest.raises(ConfigError, match=r"p.yaml:1:9: the tag .* is not allowed"):
        read_pipeline(path)
