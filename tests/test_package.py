"""The package as a whole: lazy names, what importing loads, the examples in the docstrings."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import packdata

STUB = Path(packdata.__file__).with_suffix(".pyi")
FOUND = [module.name for module in pkgutil.walk_packages(packdata.__path__, "packdata.")]
MODULES = sorted(name for name in FOUND if not name.endswith("__main__"))


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_loads_neither_torch_nor_datasets_nor_numpy():
    assert loaded_after("import packdata").isdisjoint({"torch", "datasets", "pyarrow", "numpy"})


@pytest.mark.parametrize("part", ["planning", "sources"])
def test_the_data_path_starts_without_torch(part):
    assert "torch" not in loaded_after(f"import packdata.{part}")


@pytest.mark.parametrize("name", sorted(packdata.__all__))
def test_every_public_name_resolves(name):
    assert getattr(packdata, name) is not None


def test_the_stub_names_what_the_package_names():
    tree = ast.parse(STUB.read_text())
    stubbed = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert stubbed == set(packdata.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_the_package_itself(module):
    source = Path(importlib.util.find_spec(module).origin).read_text()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    bare = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module == "packdata"]
    assert "packdata" not in names
    assert not bare


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_the_docstrings_are_right(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write files
    failures, _ = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    assert failures == 0
