"""Files that never reach a prompt."""

from pathlib import Path

import pytest

from prompts.ignore import IgnoreRules


@pytest.mark.parametrize(
    "name",
    [".env", "conf/.env.local", "prod.env", "tls/server.key", "a.PEM", ".ssh/config", "id_rsa", "my-secrets.yaml"],
)
def test_u25_what_looks_like_a_secret_is_excluded_wherever_it_is(name, tmp_path):
    assert IgnoreRules().excluded(tmp_path / name, tmp_path)
    assert IgnoreRules().excluded(Path("/elsewhere") / name, None)


@pytest.mark.parametrize("name", ["environment.py", "secrets.py", "credentials.py", "keys.py", "env/a.py", "key.md"])
def test_source_code_about_secrets_is_not_a_secret(name, tmp_path):
    assert not IgnoreRules().excluded(tmp_path / name, tmp_path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_u25_ignore_files_count_from_the_repository_down(tmp_path):
    root = tmp_path / "repo" / "work"
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    write(tmp_path / "repo" / ".gitignore", "*.log\nbuild/\n/work/private.py\n")
    write(root / "deep" / ".gitignore", "!keep.log\nlocal.py\n")
    write(root / ".draftlineignore", "generated_*.py\n")
    rules = IgnoreRules()
    ignored = [
        "a.log",
        "build/x.py",
        "private.py",
        "deep/local.py",
        "deep/b.log",
        "generated_a.py",
        "deep/build/keep.log",
    ]
    kept = ["a.py", "deep/keep.log", "local.py", "deep/private.py"]
    assert [name for name in ignored + kept if rules.excluded(root / name, root)] == ignored


def test_u25_a_changed_ignore_file_counts_at_once(tmp_path):
    rules = IgnoreRules()
    assert not rules.excluded(tmp_path / "a.py", tmp_path)
    write(tmp_path / ".gitignore", "a.py\n")
    assert rules.excluded(tmp_path / "a.py", tmp_path)
    write(tmp_path / ".gitignore", "# nothing\n")
    assert not rules.excluded(tmp_path / "a.py", tmp_path)


def test_u25_a_link_is_as_excluded_as_what_it_leads_to(tmp_path):
    root = tmp_path / "work"
    write(root / ".gitignore", "build/\n")
    write(root / "build" / "made.py", "")
    write(tmp_path / "home" / ".env", "")
    write(root / "plain.py", "")
    targets = {"a.py": root / "build" / "made.py", "notes.txt": tmp_path / "home" / ".env", "b.py": root / "plain.py"}
    for name, target in targets.items():
        (root / name).symlink_to(target)
    (tmp_path / "linked").symlink_to(root)
    for folder in (root, tmp_path / "linked"):
        rules = IgnoreRules()
        assert [name for name in targets if rules.excluded(folder / name, folder)] == ["a.py", "notes.txt"]


def test_an_unreadable_ignore_file_ignores_nothing(tmp_path):
    (tmp_path / ".gitignore").mkdir()
    assert not IgnoreRules().excluded(tmp_path / "a.py", tmp_path)
