"""From records to one HTML file: execute a notebook, export it with our template, check it."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
import vl_convert as vlc
from nbconvert import HTMLExporter

from kvtop_lib import paths, runner
from kvtop_lib.figures.static import VL_VERSION, printable
from kvtop_lib.note.article import Article
from kvtop_lib.note.compared import ComparedArticle
from kvtop_lib.note.quoted import PREFIX, QuotedArticle, is_published
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


def execute(name: str, given: dict[str, str]) -> nbformat.NotebookNode:
    """Execute a notebook of the note; errors as in `kvtop_lib.runner.run`."""
    source = paths.notebooks_dir() / f"{name}.ipynb"
    with tempfile.TemporaryDirectory() as scratch:
        out = runner.run(source, Path(scratch) / source.name, given)
        return nbformat.read(out, as_version=4)


def render_note(target: Path | str, out: Path | str) -> Path:
    """Render the note of a run or of published evidence to ``out``, whole or not at all.

    Parameters
    ----------
    target : Path or str
        A run folder, ``published:NAME``, or the YAML file of a published source.
    out : Path or str
        The page.

    Raises
    ------
    KvtopError
        When the target cannot be read, a cell fails, the page breaks a limit or cannot be written.
    """
    if is_published(target):
        source = QuotedArticle(target).ev.source
        named = str(target) if str(target).startswith(PREFIX) else str(Path(target).resolve())
        return _render("91_published", {"source": named}, f"KVTop · {source.title}", out)
    run = Path(target)
    if not (run / "results.jsonl").is_file():
        raise KvtopError(
            f"{run} holds no results.jsonl, name a run folder such as outputs/runs/reproduce"
        )
    Article(run)  # what cannot be read is said before a kernel starts
    return _render("90_note", {"run": str(run.resolve())}, f"KVTop · {run.resolve().name}", out)


def render_comparison(
    first: Path | str, second: Path | str, out: Path | str, declared: Sequence[str] = ()
) -> Path:
    """Render two runs side by side; errors as in `render_note` and `ComparedArticle`."""
    runs = [Path(folder).resolve() for folder in (first, second)]
    ComparedArticle(*runs, declared)
    given = {"first": str(runs[0]), "second": str(runs[1]), "declared": ",".join(declared)}
    return _render("92_compare", given, f"KVTop · {runs[0].name} and {runs[1].name}", out)


def _render(notebook: str, given: dict[str, str], title: str, out: Path | str) -> Path:
    html = export(execute(notebook, given), printable(title))
    check(html)
    out = Path(out)
    part = out.with_name(out.name + ".partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(html, encoding="utf-8")
        part.replace(out)
    except OSError as e:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise KvtopError(f"{out} cannot be written: {e.strerror or e}") from e
    return out
