"""``tools/marked.py``: parts of a page between marks."""

from __future__ import annotations

import pytest

from marked import rewrite, written

PAGE = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin --><!-- y: end -->"


def test_parts_are_put_between_their_marks_and_nothing_else_changes():
    new = written(PAGE, {"x": "1\n2", "y": "3"})
    assert new == (
        "a\n<!-- x: begin -->\n1\n2\n<!-- x: end -->\nb\n<!-- y: begin -->\n3\n<!-- y: end -->"
    )
    assert written(new, {"x": "1\n2"}) == new


@pytest.mark.parametrize("page", ["", "<!-- x: begin -->", "<!-- x: end --><!-- x: begin -->"])
def test_a_page_without_its_marks_is_a_fault(page):
    with pytest.raises(AssertionError, match="no marks 'x'"):
        written(page, {"x": "1"})


def test_check_says_and_writes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    monkeypatch.setattr("sys.argv", ["tool", "--check"])
    assert rewrite(path, {"x": "new"}) == 1 and path.read_text() == PAGE
    assert rewrite(path, {"x": "old"}) == 0
    monkeypatch.setattr("sys.argv", ["tool"])
    assert rewrite(path, {"x": "new"}) == 0 and "\nnew\n" in path.read_text()
