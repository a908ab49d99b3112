"""The manifest: complete, free of secrets, and true of the checkout it describes."""

from __future__ import annotations

import subprocess

import pytest

from kvtop_lib import paths, provenance
from kvtop_lib.params import load_profile
from kvtop_lib.store import read_json

HIDDEN = "<redacted>"


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """A small checkout in place of ours."""
    monkeypatch.setattr(paths, "repo_root", lambda: tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "cpu.lock").write_text("a==1\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for args in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *args], cwd=tmp_path, check=True)
    return tmp_path


def test_commit_and_dirty_flag(repo):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repo, capture_output=True, text=True)
    assert provenance.git() == {"commit": head.stdout.strip(), "dirty": False}
    (repo / "outputs.txt").write_text("untracked files are no change")
    assert provenance.git()["dirty"] is False
    (repo / "requirements" / "cpu.lock").write_text("a==2\n")
    assert provenance.git()["dirty"] is True


def test_outside_a_checkout_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "repo_root", lambda: tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.git() == {"commit": None, "dirty": None}


def test_the_lock_hash_follows_contents_and_names(repo):
    first = provenance.locks_sha256()
    lock = repo / "requirements" / "cpu.lock"
    lock.write_text("a==2\n")
    second = provenance.locks_sha256()
    lock.rename(lock.with_name("gpu.lock"))
    assert len({first, second, provenance.locks_sha256()}) == 3


def test_secrets_are_redacted_and_the_rest_is_left_alone():
    given = {
        "env": {"HF_TOKEN": "hf_x", "OPENAI_API_KEY": "sk-x", "OMP_NUM_THREADS": "2"},
        "server_args": {"api-key": "s", "max-total-tokens": 100000, "admin_api_key": "s"},
        "mtp": {"token_map": "token_map.pt"},
        "url": ["http://user:pass@host:80/x", "http://host/x"],
    }
    found = provenance.redacted(given)
    assert found["env"] == {
        "HF_TOKEN": HIDDEN,
        "OPENAI_API_KEY": HIDDEN,
        "OMP_NUM_THREADS": "2",
    }
    assert found["server_args"]["max-total-tokens"] == 100000
    assert found["server_args"]["api-key"] == found["server_args"]["admin_api_key"]
    assert found["server_args"]["api-key"] == HIDDEN
    assert found["mtp"] == {"token_map": "token_map.pt"}
    assert found["url"] == [f"http://{HIDDEN}@host:80/x", "http://host/x"]


def test_the_manifest_of_a_profile(tmp_path):
    profile = load_profile("test")
    marks = {"trace": "t" * 64, "weights": {"model": "w"}, "keys": {"baseline": "k"}}
    file = provenance.write_manifest(profile, tmp_path / "demo", marks)
    found = read_json(file)
    assert found["run"] == "demo" and list(found["arms"]) == profile.arms
    assert found["model"]["id"] == profile.model and found["workload"]["id"] == profile.workload
    assert found["trace"] == {"name": found["workload"]["trace"], "sha256": "t" * 64}
    assert found["machine"]["cores"] >= 1 and found["machine"]["memory_bytes"] > 1 << 28
    assert str(paths.repo_root()) not in file.read_text()


def test_a_text_that_is_committed_names_no_folder_of_the_machine(monkeypatch):
    monkeypatch.setenv("KVTOP_ROOT", "/app")
    monkeypatch.setenv("KVTOP_OUTPUTS", "/data/jürgen/out")
    text = 'at "/app/x", /app. /apple /app-2 /data/jürgen/out/runs "/data/j\\u00fcrgen/out"'
    cached = paths.portable("/app/.cache/kvtop/m in /srv/x/app/y")
    assert cached == "./.cache/kvtop/m in /srv/x/app/y"
    assert paths.portable(text) == 'at "./x", .. /apple /app-2 out/runs "out"'
