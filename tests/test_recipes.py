"""Every recipe runs in its short form, as a user would start it."""

import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.py"))


@pytest.mark.recipe
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_runs_in_its_short_form(recipe, tmp_path):
    command = [sys.executable, str(recipe), "--smoke"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert run.stdout.strip(), "a recipe that prints nothing shows nothing"
