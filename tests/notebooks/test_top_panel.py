"""The panel of `kvtop top` in a kernel: its display goes on changing after the cell has ended."""

import nbformat
import pytest
from nbclient import NotebookClient
from scripted_server import ScriptedServer

SHOW = "from kvtop_lib.top import Panel\npanel = Panel({url!r}, period_s=0.2)\npanel.show()"
WAIT = """
while "running" not in panel.html:
    panel._thread.join(0.1)
    assert panel._thread.is_alive()
"""
STOP = "panel.stop()"


@pytest.mark.notebook
def test_the_panel_is_kept_current_below_its_cell():
    with ScriptedServer() as server:
        server.running = 3
        book = nbformat.v4.new_notebook()
        sources = (SHOW.format(url=server.url), WAIT, STOP)
        book.cells = [nbformat.v4.new_code_cell(source) for source in sources]
        NotebookClient(book, timeout=300, kernel_name="python3").execute()
    shown = [o["data"]["text/html"] for o in book.cells[0].outputs if "data" in o]
    assert len(shown) == 1, "one display, updated in place"
    assert "sglang" in shown[0] and ">3<" in shown[0]
    assert not book.cells[1].outputs
