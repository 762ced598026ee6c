"""The fragments in changes/ become a change log."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, run


def test_a_draft_can_be_made() -> None:
    draft = run("-m", "towncrier", "build", "--draft", "--version", "9.9.9", cwd=ROOT).stdout
    assert "## 9.9.9" in draft
    fragments = [p for p in (ROOT / "changes").glob("*.md") if p.name[0] != "."]
    assert draft.count("\n- ") == len(fragments)
    assert not re.search(r"#\d", draft)  # numbers of issues mean nothing to readers


def test_the_change_log_has_its_marker() -> None:
    assert "<!-- towncrier release notes start -->\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
