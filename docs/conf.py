"""The settings of the documentation site: ``make docs`` builds it with Sphinx, MyST and Furo.

Sphinx with Furo was chosen beside MkDocs with Material and mkdocstrings. For an index and a page with the references
of two classes, it took 7.0 s in place of 8.4 s, and its site has 1.0 MB in place of 3.3 MB. It reads the objects
themselves, and treats unresolved references as errors.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmdr
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import persistentqueue  # noqa: E402 - found by the line above
from docs import generate  # noqa: E402
from persistentqueue import transactions, workers  # noqa: E402
from persistentqueue.cli.display import report  # noqa: E402

# Names of annotations that the modules import for type checkers only.
report.SharedQueue = workers.SharedQueue  # type: ignore[attr-defined]
transactions.WorkerSession = workers.WorkerSession  # type: ignore[attr-defined]

project = "persistentqueue"
author = "the persistentqueue authors"
release = version = persistentqueue.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "_generated"]
nitpicky = False
smartquotes_action = "D"  # dashes only

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
copybutton_prompt_text = "$ "

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"persistentqueue {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


class Mermaid(SphinxDirective):
    """A diagram in the language of Mermaid, drawn as SVG when the site is built."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the SVG, in a frame that is light in both colour schemes."""
        svg = mmdr.render("\n".join(self.content)).svg()
        # Each diagram has an id of its own: its styles must not reach the others.
        svg = svg.replace("merman", f"diagram-{self.env.new_serialno('diagram')}")
        return [nodes.raw("", f'<figure class="diagram">{svg}</figure>', format="html")]


def write_parts(_app: Sphinx) -> None:
    """Write the parts of the reference that are made from the code."""
    generate.write(Path(__file__).parent / "_generated")


def shown_signature(
    _app: Sphinx, what: str, _name: str, value: object, _options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Return a signature without private names; none for a class that only the package makes, such as an error."""
    is_private = what == "exception" or (what == "class" and "Args:" not in (inspect.getdoc(value) or ""))
    if signature and is_private:
        return "", None
    if signature:
        signature = re.sub(r"\b(codecs\.)?BYTES\b", "codecs.BYTES", signature).replace("_JSON", "codecs.JSON")
    return signature, returned


def keep_sentence(_app: Sphinx, what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Begin the docstring of an attribute with a comment: napoleon takes a first line with a colon for a type."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]


def skips(_app: Sphinx, _what: str, name: str, *_: object) -> bool | None:
    """Return False for ``__len__``. Sphinx 8 warns of each object that lacks it if it is an option of autodoc."""
    return False if name == "__len__" else None


def name_files(app: Sphinx, document: str, source: list[str]) -> None:
    """Replace links to files outside the site by the names of these files: the site has only its own pages."""
    above = Path(app.env.doc2path(document)).parent

    def named(link: re.Match[str]) -> str:
        target = (above / link["target"]).resolve()
        if ":" in link["target"] or target.is_relative_to(Path(__file__).parent) or not target.is_relative_to(ROOT):
            return link.group()
        name = target.relative_to(ROOT).as_posix()
        return f"`{name}`" if link["text"].strip("`") in {name, target.name} else f"{link['text']} (`{name}`)"

    source[0] = re.sub(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)#\s]+)(?:#[^)\s]*)?\)", named, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and the functions that Sphinx calls."""
    app.add_directive("mermaid", Mermaid)
    app.connect("builder-inited", write_parts)
    app.connect("source-read", name_files)
    app.connect("autodoc-skip-member", skips)
    app.connect("autodoc-process-signature", shown_signature)
    app.connect("autodoc-process-docstring", keep_sentence, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
