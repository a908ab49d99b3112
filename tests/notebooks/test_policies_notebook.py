"""The comparison of width policies on a small run made by hand, executed as it ships."""

import json
import re
import sys
from pathlib import Path

import pytest
from checkout import execute

from kvtop_lib import cli
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import policies_run as truth  # noqa: E402

pytestmark = pytest.mark.notebook


def test_the_command_executes_the_notebook(tmp_path, capsys):
    run = truth.write_run(tmp_path / "run")
    cli.policies_(str(run))
    assert "Controller: the claim holds. Within noise" in capsys.readouterr().out
    cells = json.loads((run / "55_policies.ipynb").read_text())["cells"]
    charts = [o for c in cells if c["cell_type"] == "code" for o in c["outputs"]
              if "<svg" in "".join(o.get("data", {}).get("text/html", ""))]  # fmt: skip
    assert len(charts) == 3  # throughput, ratio, widths
    assert json.loads((run / "policies.json").read_text())["claims"][0]["holds"] is True


def test_a_controller_that_stays_behind_and_no_recorded_iterations(tmp_path):
    rates = truth.TOK_S | {"mtp_controller": truth.TOK_S["mtp_controller"] | {8: 340.0}}
    run = truth.write_run(tmp_path / "run", tok_s=rates, blocks=(1,), delta=0)
    for file in run.rglob("iterations.parquet"):
        file.unlink()
    shown = "\n".join(execute("55_policies", tmp_path, run=str(run)))
    assert "no A/A pair: no band" in shown and "the claim is not shown" in shown
    assert re.search(r"mtp_controller +8 +baseline +1 +0\.850\b", shown)


def test_a_run_without_policies_is_one_sentence(tmp_path):
    with pytest.raises(KvtopError, match="holds no results.jsonl; measure it"):
        cli.policies_(str(tmp_path))
    run = truth.write_run(tmp_path / "run")
    arms = {a: d for a, d in truth.DRAFTS.items() if a != "mtp_controller"}
    (run / "manifest.json").write_text(json.dumps(truth.manifest(arms)))
    with pytest.raises(KvtopError, match="no arm that chooses among widths"):
        cli.policies_(str(run))
    assert not list(run.glob("55_policies*"))
