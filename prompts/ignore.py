"""Which files never reach a prompt: those that look like secrets and those that git or Draftline is told to ignore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".draftlineignore")

_SECRETS = GitIgnoreSpec.from_lines(
    [
        ".env",
        ".env.*",
        "*.env",
        ".envrc",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "*.kdbx",
        "*.asc",
        "*.gpg",
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
        ".ssh/",
        ".gnupg/",
        ".aws/",
        ".netrc",
        "_netrc",
        ".npmrc",
        ".pypirc",
        ".pgpass",
        ".htpasswd",
        ".git-credentials",
        ".dockercfg",
        ".docker/config.json",
        "*credentials*.json",
        "*credentials*.y*ml",
        "*credentials*.ini",
        "*credentials*.toml",
        "*secret*.json",
        "*secret*.y*ml",
        "*secret*.ini",
        "*secret*.toml",
        "*secret*.txt",
        "service-account*.json",
        "*.tfvars",
        "*.tfstate*",
        ".git/",
    ]
)


def looks_secret(path: str) -> bool:
    """Whether the name of the file, or of a folder above it, is one that secrets have. path: with ``/``."""
    return _SECRETS.match_file(path.lstrip("/").lower())


class IgnoreRules:
    """Answers for one file at a time; ignore files are read again when they changed."""

    def __init__(self) -> None:
        self._specs: dict[Path, tuple[tuple[int, int], GitIgnoreSpec]] = {}

    def excluded(self, path: Path, root: Path | None) -> bool:
        """True when the file must not be read for a prompt.

        path: absolute. root: the workspace folder it is in, if any. Ignore files count from the root of the git
        repository (or else of the workspace) down to the file; a folder that is ignored ignores all below it. A link
        to a file is as excluded as the file itself.
        """
        real = Path(os.path.realpath(path))
        return self._excluded(path, root) or (
            real != path and self._excluded(real, None if root is None else Path(os.path.realpath(root)))
        )

    def _excluded(self, path: Path, root: Path | None) -> bool:
        if looks_secret(path.as_posix()):
            return True
        if root is None or not path.is_relative_to(root):
            return False
        top = repository_of(root) or root
        return any(self._ignored(part, top) for part in _parts(path, top))

    def _ignored(self, path: str, top: Path) -> bool:
        """path: relative to ``top``, a folder's with a slash at its end. The deepest rule that matches decides."""
        ignored = False
        folder = top
        steps = path.rstrip("/").split("/")
        for depth in range(len(steps)):
            rest = path.split("/", depth)[-1]
            for name in IGNORE_FILES:
                if (spec := self._spec(folder / name)) and (verdict := spec.check_file(rest).include) is not None:
                    ignored = verdict
            folder /= steps[depth]
        return ignored

    def _spec(self, file: Path) -> GitIgnoreSpec | None:
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if (known := self._specs.get(file)) is None or known[0] != stamp:
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                self._specs[file] = known = (stamp, GitIgnoreSpec.from_lines(lines))
            return known[1]
        except (OSError, ValueError):
            self._specs.pop(file, None)
            return None


def _parts(path: Path, top: Path) -> Iterator[str]:
    """The file and every folder above it, from the outermost in."""
    steps = path.relative_to(top).parts
    for depth in range(1, len(steps)):
        yield "/".join(steps[:depth]) + "/"
    yield "/".join(steps)


def repository_of(folder: Path) -> Path | None:
    """The root of the git repository that the folder is in; None outside of one."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
