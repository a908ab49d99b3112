"""From a run to one HTML file: execute `90_note.ipynb`, export it with our template, check it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import nbformat
import vl_convert as vlc
from nbconvert import HTMLExporter

from kvtop_lib import paths, runner
from kvtop_lib.figures.static import VL_VERSION
from kvtop_lib.terms import KvtopError

TEMPLATES = Path(__file__).parent / "template"
LIMIT_BYTES = 2_000_000
_FETCH = re.compile(
    r"""(?:\ssrc|\shref|@import|url)\s*[=(]?\s*["']?(?:https?:)?//""", re.IGNORECASE
)


def vega_runtime() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the wheel of ``vl_convert``."""
    snippet = "window.vegaEmbed = vegaEmbed;"
    return vlc.javascript_bundle(snippet, vl_version=VL_VERSION).replace("</script", "<\\/script")


def _exporter() -> HTMLExporter:
    return HTMLExporter(
        extra_template_basedirs=[str(TEMPLATES)], template_name="kvtop", exclude_anchor_links=True
    )


def export(notebook: nbformat.NotebookNode, title: str) -> str:
    """HTML page of an executed note.

    Parameters
    ----------
    notebook : NotebookNode
        Executed; its outputs hold the article.
    title : str
        Text of the browser tab.
    """
    resources = {
        "kvtop": {
            "title": title,
            "css": (TEMPLATES / "kvtop" / "note.css").read_text(encoding="utf-8"),
            "js": (TEMPLATES / "kvtop" / "note.js").read_text(encoding="utf-8"),
            "vega": vega_runtime(),
        }
    }
    html, _ = _exporter().from_notebook_node(notebook, resources=resources)
    return html


def check(html: str) -> None:
    """Refuse a page that is too large or that would fetch anything.

    Raises
    ------
    KvtopError
        With the reason.
    """
    size = len(html.encode())
    if size > LIMIT_BYTES:
        raise KvtopError(f"the note is {size / 1e6:.1f} MB, more than {LIMIT_BYTES / 1e6:.0f} MB")
    markup = re.sub(r"<script\b.*?</script>", "", html, flags=re.DOTALL)
    if found := _FETCH.search(markup):
        raise KvtopError(f"the note would load something from outside: {found.group(0).strip()}")


def execute(run: Path) -> nbformat.NotebookNode:
    """Execute `90_note.ipynb` on a run folder; errors as in `kvtop_lib.runner.run`."""
    source = paths.notebooks_dir() / "90_note.ipynb"
    with tempfile.TemporaryDirectory() as scratch:
        out = runner.run(source, Path(scratch) / source.name, {"run": str(run.resolve())})
        return nbformat.read(out, as_version=4)


def render_note(run: Path | str, out: Path | str) -> Path:
    """Render the note of a run to ``out`` (written whole or not at all).

    Raises
    ------
    KvtopError
        When the run cannot be read, a cell fails, or the page breaks a limit.
    """
    run, out = Path(run), Path(out)
    if not (run / "results.jsonl").is_file():
        raise KvtopError(
            f"{run} holds no results.jsonl, name a run folder such as outputs/runs/reproduce"
        )
    html = export(execute(run), title=f"KVTop · {run.name}")
    check(html)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".partial")
    part.write_text(html, encoding="utf-8")
    part.replace(out)
    return out
