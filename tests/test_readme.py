"""The README's examples run as they stand, and print what it says they print."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", README, re.DOTALL)


def title_of(example: tuple[str, str]) -> str:
    before = README[: README.index(example[0])]
    return re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1]


@pytest.mark.parametrize("example", EXAMPLES, ids=title_of)
def test_an_example_of_the_readme_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed = example
    output = StringIO()
    with redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    if printed:
        assert output.getvalue().rstrip() == printed.rstrip()


def test_the_readme_has_examples_and_both_commands():
    assert len(EXAMPLES) >= 6
    assert "python -m pip install tox && python -m tox run -e quickstart" in README
    assert re.search(r"python -m pip install tox && python -m tox run$", README, re.MULTILINE)
