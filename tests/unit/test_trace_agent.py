"""Plans of agent sessions: distinct, within their bounds, the same for the same seed."""

from __future__ import annotations

import math
import random
import statistics
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.agent import AgentShape, LogNormal, estimate_tokens, plan_sessions
from kvtop_lib.trace.agent_tasks import AgentTasks
from kvtop_lib.trace.corpus import commit_id, draw_excerpt, repository_corpus

WORDS = "lane draft token width verify cache prompt window server batch".split()


def made_up_file(k: int) -> tuple[str, str]:
    rng = random.Random(k)
    paragraphs = (
        "\n".join(" ".join(rng.choices(WORDS, k=9)) for _ in range(rng.randint(2, 9)))
        for _ in range(30)
    )
    return f"src/part_{k}.py", "\n\n".join(paragraphs) + "\n"


CORPUS = [made_up_file(k) for k in range(8)]
TASKS = AgentTasks(
    "You read files.",
    {"a": "Look at {path}.", "b": "Explain {path} to me.", "c": "Test {path}, please."},
    ("Summarize it.", "Why?", "What next?"),
)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), sessions=st.integers(1, 24), spare=st.integers(0, 3))
def test_plans_are_distinct_bounded_and_repeatable(seed, sessions, spare):
    shape = AgentShape(spare_turns=spare)
    plans = plan_sessions(CORPUS, TASKS, sessions=sessions, seed=seed, shape=shape)
    assert plans == plan_sessions(CORPUS, TASKS, sessions=sessions, seed=seed, shape=shape)
    assert len(plans) == sessions
    assert len({plan.id for plan in plans}) == sessions
    assert len({plan.turns[0].messages[1]["content"] for plan in plans}) == sessions
    texts = [
        m["content"] for p in plans for t in p.turns for m in t.messages if m["role"] == "user"
    ]
    assert len(set(texts)) == len(texts)
    for plan in plans:
        assert 3 <= plan.keep <= 7
        assert len(plan.turns) == plan.keep + spare
        kept = plan.turns[: plan.keep]
        sizes = [sum(estimate_tokens(m["content"]) for m in turn.messages) for turn in kept]
        assert max(sizes) <= 150
        assert sum(sizes) + shape.output_tokens * plan.keep <= shape.session_tokens
        assert plan.turns[0].think_s == 0.0
        assert all(0.1 <= turn.think_s <= 20 for turn in plan.turns[1:])
        assert [m["role"] for m in plan.turns[0].messages] == ["system", "user"]
        assert all([m["role"] for m in t.messages] == ["user"] for t in plan.turns[1:])


def test_another_seed_makes_another_plan():
    one, two = (plan_sessions(CORPUS, TASKS, sessions=4, seed=seed) for seed in (1, 2))
    assert [p.turns for p in one] != [p.turns for p in two]


def test_every_task_is_used_before_one_is_used_again():
    plans = plan_sessions(CORPUS, TASKS, sessions=24, seed=5)
    for i in range(0, 24, 3):
        assert {plan.task for plan in plans[i : i + 3]} == {"a", "b", "c"}


def test_sessions_share_no_more_than_task_words():
    plans = plan_sessions(CORPUS, TASKS, sessions=24, seed=5)
    openings = sorted(plan.turns[0].messages[1]["content"] for plan in plans)
    longest = max(len(text.split(".py")[0]) for text in openings)
    for one, two in zip(openings, openings[1:], strict=False):
        shared = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
        assert shared <= longest


def test_too_few_tasks_or_too_little_text_is_refused():
    with pytest.raises(KvtopError, match="3 tasks and 8 files make fewer distinct sessions"):
        plan_sessions(CORPUS, TASKS, sessions=25, seed=1)
    with pytest.raises(KvtopError, match="corpus is too small"):
        plan_sessions([("a.py", "one line\n")], TASKS, sessions=1, seed=1)


def test_log_normal_draws_have_the_median_and_the_bounds_asked_for():
    draw, rng = LogNormal(10.0, 0.5, 5.0, 40.0), random.Random(3)
    values = [draw.draw(rng) for _ in range(4000)]
    assert min(values) == 5.0 and max(values) <= 40.0
    assert statistics.median(values) == pytest.approx(10.0, rel=0.05)
    # One standard deviation of the logarithm above the median is the 84.1st percentile.
    assert statistics.quantiles(values, n=1000)[840] == pytest.approx(10 * math.e**0.5, rel=0.08)


def test_an_excerpt_is_the_lines_it_names():
    files, rng = dict(CORPUS), random.Random(4)
    for _ in range(200):
        chars = rng.randint(30, 500)
        found = draw_excerpt(files, chars, rng)
        lines = files[found.path].split("\n")[found.first_line - 1 : found.last_line]
        assert found.text == "\n".join(lines)[: len(found.text)]
        assert 0 < len(found.text) <= chars


def test_a_long_line_is_cut():
    found = draw_excerpt({"x": "abcdefghij" * 10}, 25, random.Random(1))
    assert found.text == "abcdefghijabcdefghijabcde"
    assert (found.first_line, found.last_line) == (1, 1)


def git(root, *args) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@x")
    done = subprocess.run(["git", "-C", str(root), *who, *args], check=True, capture_output=True)
    return done.stdout.decode().strip()


def test_the_corpus_is_committed_text_of_our_own(tmp_path):
    files = {
        "README.md": "readme µ",
        "kvtop_lib/a.py": "a = 1",
        "kvtop_lib/embedded/agent/README.md": "card",
        "requirements/cpu.txt": "x==1",
        "LICENSE": "licence",
        "figure.png": "binary",
        "Makefile": "all:",
        "untracked.md": "not added",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", *(name for name in files if name != "untracked.md"))
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "README.md").write_text("edited")
    expected = [("Makefile", "all:"), ("README.md", "readme µ"), ("kvtop_lib/a.py", "a = 1")]
    assert repository_corpus(tmp_path) == expected
    first = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "commit", "-q", "-a", "-m", "second")
    assert repository_corpus(tmp_path)[1] == ("README.md", "edited")
    assert repository_corpus(tmp_path, first) == expected
    assert commit_id("HEAD~1", tmp_path) == first


def test_the_corpus_needs_a_checkout(tmp_path):
    with pytest.raises(KvtopError, match="plan agent sessions in a checkout"):
        repository_corpus(tmp_path)


def test_the_embedded_tasks_are_many_and_begin_differently():
    tasks = AgentTasks.load()
    assert len(tasks.tasks) >= 60
    beginnings = {text.split("{path}")[0] or text[:20] for text in tasks.tasks.values()}
    assert len(beginnings) == len(tasks.tasks)


def test_a_task_without_a_path_is_refused(tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text('system: s\nasks: [a]\ntasks: {x: "no place"}\n')
    with pytest.raises(KvtopError, match="task 'x' does not name {path}"):
        AgentTasks.load(path)
    path.write_text("system: s\ntasks: {}\n")
    with pytest.raises(KvtopError, match="has no 'asks'"):
        AgentTasks.load(path)
