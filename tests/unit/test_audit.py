"""Audit of published tables, against tables worked out by hand."""

import json
from pathlib import Path

import pytest

from kvtop_lib import cli
from kvtop_lib.audit import audit, read_table, report
from kvtop_lib.terms import KvtopError

QWEN = Path(__file__).parents[2] / "params" / "published" / "qwen35_122b_concurrency_sweep.csv"
HEAD = "concurrency,a_output_tok_s,a_per_request_tok_s\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "table.csv"
    file.write_text(text)
    return file


def verdicts(found: dict) -> dict[str, str]:
    return {f["subject"]: f["verdict"] for f in found["findings"]}


def test_active_requests_and_what_the_printed_digits_allow(tmp_path):
    found = audit(written(tmp_path, HEAD + "1,50,50\n8,100.0,20\n"))
    one, eight = found["active"]
    assert (one["active"], eight["active"]) == (1.0, 5.0)
    assert eight["low"] == pytest.approx(99.95 / 20.5)
    assert eight["high"] == pytest.approx(100.05 / 19.5)
    assert found["findings"] == []
    assert "nothing in the table contradicts itself" in report(found)


def test_the_worked_example_does_not_support_its_cap():
    found = audit(QWEN, ["mtp:cap=48"])
    mtp = {a["concurrency"]: round(a["active"], 1) for a in found["active"] if a["arm"] == "mtp"}
    assert mtp == {1: 1.0, 4: 3.4, 16: 14.3, 32: 24.1, 64: 23.9, 128: 25.3}  # by a calculator
    base = [round(a["active"], 1) for a in found["active"] if a["arm"] == "baseline"]
    assert base == [1.0, 3.5, 14.3, 23.0, 52.9, 68.3]
    assert verdicts(found) == {
        "mtp, level": "note",
        "quoted changes": "supported",
        "mtp: cap of 48": "not supported",
    }
    claim = found["findings"][-1]["text"]
    assert "23.9 at c = 64, 25.3 at c = 128, not 48" in claim
    assert "already at c = 32, where 48 cannot bind, it is 24.1" in claim
    assert "= 1.89" in claim  # 48 / 25.35


@pytest.mark.parametrize(
    ("rows", "claim", "verdict"),
    [
        ("64,960,20\n128,980,20\n", "a:cap=48", "supported"),  # 48 and 49 active
        ("64,1200,20\n", "a:cap=48", "contradicted"),  # 60 active
        ("64,480,20\n", "a:cap=48", "not supported"),  # 24 active
        ("48,480,20\n", "a:cap=48", "not tested"),  # a cap of 48 lets all 48 run
        ("48,480,20\n", "a:batch=48", "not supported"),
        ("48,940,20\n", "a:batch=48", "supported"),  # 47: within a request or 5 %
        ("32,640,20\n", "a:batch=48", "not tested"),
    ],
)
def test_a_claim_about_a_cap_or_a_batch(tmp_path, rows, claim, verdict):
    found = audit(written(tmp_path, HEAD + rows), [claim])
    assert found["findings"][-1]["verdict"] == verdict


def test_a_row_that_tests_a_batch_is_not_held_against_it_as_one_before(tmp_path):
    file = written(tmp_path, HEAD + "1,50,50\n8,200,30\n")  # 6.7 of 8
    (claim,) = [f for f in audit(file, ["a:batch=8"])["findings"] if "batch" in f["subject"]]
    assert claim["verdict"] == "not supported" and "6.7 at c = 8, not 8" in claim["text"]
    assert "already" not in claim["text"]


def test_the_line_of_a_fault_is_the_file_s(tmp_path):
    file = written(tmp_path, HEAD + "\n\n1,50,fast\n")
    with pytest.raises(KvtopError, match="line 4: 'fast'"):
        audit(file)


def test_speeds_of_whole_requests_must_account_for_every_client(tmp_path):
    file = written(tmp_path, HEAD + "8,160,20\n16,160,20\n")  # 8 of 8, 8 of 16
    assert verdicts(audit(file, speed="decode")) == {"a, level": "note"}  # 8 may well wait
    found = audit(file, speed="e2e")
    assert verdicts(found) == {"a, e2e speed": "not supported", "a, level": "note"}
    assert "at c = 16: 8.0 active requests, but a closed loop keeps 16" in report(found)


def test_more_requests_than_clients(tmp_path):
    found = audit(written(tmp_path, HEAD + "4,200,20\n"))
    assert verdicts(found) == {"a, decode speed": "contradicted"}


def test_a_quoted_change_that_the_table_does_not_give(tmp_path):
    head = (
        "concurrency,off_output_tok_s,on_output_tok_s,quoted_output_change_pct,"
        "off_per_request_tok_s,on_per_request_tok_s\n"
    )
    good = written(tmp_path, head + "1,108,121.5,12,108,121.5\n")  # 12.5 %: rounds either way
    assert verdicts(audit(good)) == {"quoted changes": "supported"}
    apart = written(tmp_path, head + "1,108,121.5,12,108,121.5\n8,300,,20,50,\n")
    assert [(f["verdict"], f["text"]) for f in audit(apart)["findings"][-2:]] == [
        ("supported", "1 quoted changes agree with the table, within its rounding"),
        ("not tested", "1 quoted changes are of loads at which not both arms have a row"),
    ]
    alone = written(tmp_path, head + "8,300,,20,50,\n")
    assert verdicts(audit(alone)) == {"quoted changes": "not tested"}
    wrong = audit(written(tmp_path, head + "1,100,120,25,100,120\n"))
    assert [f["text"] for f in wrong["findings"]] == [
        "quoted +25 % at c = 1, the table gives +20.0 %"
    ]


def test_one_row_per_arm_and_load(tmp_path):
    text = "arm,concurrency,output_tok_s,per_request_tok_s,note\nx,2,40,20,-\ny,2,30,30,-\n"
    table = read_table(written(tmp_path, text))
    assert table.arms == ("x", "y") and table.loads("y") == [2]
    assert table.cells["x", 2][0].value == 40
    assert [a["active"] for a in audit(tmp_path / "table.csv")["active"]] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no rows"),
        (HEAD, "holds no rows"),
        ("load,a_output_tok_s\n1,2\n", "no column 'concurrency'"),
        ("concurrency,a_output_tok_s\n1,2\n", "no arm with both"),
        ("arm,concurrency,output_tok_s\nx,1,2\n", "no column 'per_request_tok_s'"),
        (HEAD + "1,2\n", "line 2: 2 cells under 3 columns"),
        (HEAD + "1,2,327,44\n", "without a thousands separator"),
        (HEAD + "1,fast,44\n", "'fast' is not a plain decimal number"),
        (HEAD + "1,nan,44\n", "'nan' is not a plain decimal number"),
        (HEAD + "1,0,44\n", "cannot be audited"),
        (HEAD + "1,44,\n", "one of the two speeds is missing"),
        (HEAD + "zero,44,1\n", "concurrency 'zero'"),
        (HEAD + "9" * 5000 + ",44,1\n", "no whole number from 1 to 999999999"),
        (HEAD + "1," + "9" * 400 + ",1\n", "is not a plain decimal number of up to 15 digits"),
        (HEAD + "0,44,1\n", "concurrency '0'"),
        (HEAD + "1,44,1\n1,44,1\n", "stands twice"),
        (HEAD + "1,,\n", "holds no numbers"),
        ("concurrency,concurrency\n1,1\n", "has the column 'concurrency' twice"),
    ],
)
def test_a_table_that_is_none_is_one_sentence(tmp_path, text, said):
    with pytest.raises(KvtopError) as error:
        audit(written(tmp_path, text))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "table.csv"
    file.write_bytes(b"concurrency\xff\xfe\n1\n")
    with pytest.raises(KvtopError, match="is not UTF-8 text"):
        audit(file)


@pytest.mark.parametrize(
    "claim", ["mtp", "mtp:cap=0", "mtp:cap=many", "mtp:cap=" + "9" * 5000, "other:cap=4"]
)
def test_a_claim_that_is_none(claim):
    with pytest.raises(KvtopError, match="claim"):
        audit(QWEN, [claim])


def test_an_unknown_definition():
    with pytest.raises(KvtopError, match="one of: decode, e2e"):
        audit(QWEN, speed="peak")


def test_the_command(monkeypatch, capsys, tmp_path):
    def kvtop(*args: str) -> int:
        monkeypatch.setattr("sys.argv", ["kvtop", "audit", *args])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    assert kvtop(str(QWEN), "--claim", "mtp:cap=48", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["active"]) == 12
    assert kvtop(str(tmp_path / "absent.csv")) == 1
    assert "absent.csv: No such file" in capsys.readouterr().err
