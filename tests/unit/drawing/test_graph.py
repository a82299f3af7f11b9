"""Graphs: the rows of boxes, their picture, and their text in Mermaid."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from persistentqueue.drawing.graph import Box, mermaid, ranked, svg


def box(key: str, *, is_round: bool = False) -> Box:
    return Box(key, (key, "<1> waits"), "waits", is_round)


FORK = [box("a"), box("b"), box("c"), box("d")]
ARROWS = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")]


def test_a_box_is_below_all_that_lead_to_it() -> None:
    """The row of a box is behind the last row from which an arrow leads to it."""
    assert [[each.key for each in row] for row in ranked(FORK, ARROWS)] == [["a"], ["b", "c"], ["d"]]


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] < pair[1])))
def test_arrows_of_any_graph_lead_downwards(pairs: set[tuple[int, int]]) -> None:
    """Each box has one place, and each arrow leads to a lower row."""
    boxes, arrows = [box(f"{number}") for number in range(7)], [(f"{one}", f"{other}") for one, other in sorted(pairs)]
    rows = ranked(boxes, arrows)
    places = {each.key: number for number, row in enumerate(rows) for each in row}
    assert sorted(each.key for row in rows for each in row) == sorted(each.key for each in boxes)
    assert all(places[one] < places[other] for one, other in arrows)


def test_boxes_that_follow_each_other_stand_below_each_other() -> None:
    """A row is sorted by the places of the boxes above, so that arrows cross less."""
    boxes = [box(key) for key in ("a", "b", "y", "x")]
    assert [each.key for each in ranked(boxes, [("a", "x"), ("b", "y")])[1]] == ["x", "y"]


def test_the_picture_is_well_formed_and_lies_in_its_frame() -> None:
    """The picture has each box and each arrow, escaped texts, and nothing outside of its frame."""
    root = ElementTree.fromstring(svg(FORK, ARROWS, "a & b"))
    assert [each.text for each in root.iter("title")] == ["a & b"]
    shapes = list(root.iter("rect"))
    assert len(shapes) == len(FORK)
    assert sum(path.get("class") == "arrow" for path in root.iter("path")) == len(ARROWS)
    assert sum(text.text == "<1> waits" for text in root.iter("text")) == len(FORK)
    width, height = (float(root.get(key) or 0) for key in ("width", "height"))
    for shape in shapes:
        x, y, w, h = (float(shape.get(key) or 0) for key in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    assert ElementTree.fromstring(svg([], [], "nothing")).get("class") == "graph"


def test_mermaid_has_each_box_and_arrow() -> None:
    """The text in Mermaid names each box once, with an escaped text, and each arrow."""
    text = mermaid([box("a"), box("b", is_round=True)], [("a", "b")])
    assert text.splitlines() == [
        "flowchart TD",
        '    n0["a<br/>&lt;1&gt; waits"]',
        '    n1(["b<br/>&lt;1&gt; waits"])',
        "    n0 --> n1",
    ]


def test_boxes_are_as_wide_as_the_longest_text() -> None:
    """A text of 40 characters has room in its box, and boxes of short texts have the usual width."""
    widths = []
    for name in ("a", "n" * 40):
        root = ElementTree.fromstring(svg([Box(name, (name,))], [], "one"))
        widths.append(float(next(root.iter("rect")).get("width") or 0))
        assert float(root.get("width") or 0) > widths[-1]
    assert widths[0] == 190
    assert widths[1] > 40 * 7
