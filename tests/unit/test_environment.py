"""Environment variables: all that are read are known, and one that is nearly one of them is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings

import pytest

from grace.environment import VARIABLES, warn_misspelt
from grace.errors import EnvironmentWarning
from tests.docs.pages import ROOT


def test_every_variable_that_is_named_in_the_code_is_known_and_on_the_page():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "native").rglob("*.[ch]*")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    named = {name for text in texts for name in re.findall(r"(?<![A-Z_])GRACE_[A-Z_]*[A-Z]", text)}
    in_code = {name for text in texts for name in re.findall(r"""["']?(?<![A-Z_])(GRACE_[A-Z_]*[A-Z])["']""", text)}
    assert in_code <= VARIABLES.keys() <= named
    page = (ROOT / "docs/concepts/errors.md").read_text(encoding="utf-8")
    assert {name for name in VARIABLES if f"| `{name}` |" in page} == VARIABLES.keys()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("GRACE_KERNEL", "GRACE_KERNELS"),
        ("GRACE_TRANPORT", "GRACE_TRANSPORT"),
        ("GRACE_LOCAL_WORLD", "GRACE_LOCAL_WORLD_SIZE"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest(given, meant):
    with pytest.warns(EnvironmentWarning, match=f"{given} is not read; did you mean '{meant}'") as told:
        warn_misspelt({given: "x", meant: "y"})
    assert len(told) == 1


def test_right_ones_and_those_of_others_are_nobodys_mistake():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_misspelt({**VARIABLES, "GRACE_HOME": "/opt", "GRACE_TEST_DIGITS": "1", "KERNELS": "1", "GRACE_": ""})


def test_it_is_said_where_grace_is_imported():
    environment = {**os.environ, "GRACE_KERNEL": "reference"}
    done = subprocess.run(
        [sys.executable, "-c", "import grace"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("GRACE_KERNEL is not read; did you mean 'GRACE_KERNELS'") == 1
