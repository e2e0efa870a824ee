"""The ``draftline`` command. Each command imports what it needs by itself, so ``--help`` is instant."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from server import __version__

app = typer.Typer(
    name="draftline",
    help="A local coding assistant: completions from an engine on your own machine.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _folder(name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise typer.BadParameter("it is empty; give a folder, or leave it out")
    return name


def _named(model: str | None) -> str | None:
    """An empty name is a mistake, such as an unset variable in a script, and no wish for the embedded model."""
    from server.models_known import MODEL_VARIABLE

    variable = os.environ.get(MODEL_VARIABLE)
    if model is None and variable and not variable.strip():
        raise typer.BadParameter(f"{MODEL_VARIABLE} holds blanks alone; give a GGUF file or a known name, or unset it")
    if model is not None and not model.strip():
        raise typer.BadParameter("it is empty; give a GGUF file or a known name, or leave it out")
    return model


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PATH|NAME",
        help="A GGUF file or a known name; without it $DRAFTLINE_MODEL, else the embedded model.",
        callback=_named,
    ),
]
ClientModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PATH|NAME",
        help="A GGUF file or a known name, in place of what runs; without it $DRAFTLINE_MODEL, else the model that "
        "runs or ran last, else the embedded one.",
        callback=_named,
    ),
]


def _fail(message: str, exit_code: int) -> NoReturn:
    print(f"draftline: {message}", file=sys.stderr, flush=True)
    raise typer.Exit(exit_code)


def _version(asked: bool) -> None:
    if asked:
        print(f"draftline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="A loopback address to serve HTTP on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to serve HTTP on; without it 8642, or a free one if that is taken."),
    ] = None,
    cache_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep prompts there that were computed, for the next engine; they hold what was edited.",
            show_default=False,
            callback=_folder,
        ),
    ] = None,
    idle_minutes: Annotated[
        float, typer.Option(min=0.001, help="End after so many minutes without a client.", hidden=True)
    ] = 30.0,
) -> None:
    """Load a model and serve completions over a Unix socket and loopback HTTP, until stopped."""
    from server.process.serve import ServeError, report
    from server.process.serve import serve as run
    from server.standard_streams import finish_output

    code = 0
    try:
        run(model, host=host, port=port, idle_minutes=idle_minutes, cache_dir=cache_dir)
    except ServeError as error:
        report(error)
        code = error.exit_code
    if not finish_output():
        code = code or 1
    # A model that is still loading on its thread must not keep a stopped process alive.
    os._exit(code)


@app.command()
def stop() -> None:
    """End the engine, whatever it does at the moment; the next one starts with the embedded model again."""
    import asyncio

    from server.models_known import EMBEDDED
    from server.process.last_model import read_last
    from server.process.places import RuntimeDirectoryError, find_places
    from server.process.stop import stop_engine

    try:
        last = read_last(find_places()).next
        pid = asyncio.run(stop_engine())
    except RuntimeDirectoryError as error:
        _fail(str(error), 1)
    if pid is not None:
        print(f"the engine (process {pid}) has ended")
    elif last in (None, EMBEDDED):
        print("no engine is running")
    else:
        print(f"no engine is running; the next one doesn't go on with {last}, which ran last")


@app.command()
def lsp(
    model: ClientModel = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Accepted for editors that pass it.", hidden=True)] = True,
) -> None:
    """Be a language server over standard input and output; for editors."""
    from lsp.server import main as run

    raise typer.Exit(run(model))


@app.command()
def complete(
    place: Annotated[str, typer.Argument(metavar="FILE:LINE:COL", help="Both from 1; COL in characters.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print text, reason and figures as JSON.")] = False,
    model: ClientModel = None,
) -> None:
    """Print the completion at a place in a file. Starts the engine when none is running."""
    from lsp.command import BadPlace, run

    try:
        code = run(place, as_json=as_json, model=model)
    except BadPlace as error:
        _fail(str(error), 2)
    raise typer.Exit(code)


@app.command(hidden=True)
def check(model: Annotated[str, typer.Argument(metavar="PATH")]) -> None:
    """Fail when no completion would come of a model file: asked by a client before it replaces an engine."""
    from pathlib import Path

    from server.gguf.errors import ModelFileError
    from server.usable import Unusable, check_file

    try:
        check_file(Path(model))
    except (ModelFileError, Unusable) as error:
        _fail(str(error), 1)


@app.command()
def doctor(model: Model = None) -> None:
    """Show what is installed, which model and executor would run, and whether the engine is alive."""
    from server.doctor import run

    raise typer.Exit(run(model))


class Editor(StrEnum):
    vscode = "vscode"
    nvim = "nvim"
    helix = "helix"
    zed = "zed"
    emacs = "emacs"
    sublime = "sublime"


@app.command()
def setup(
    editor: Annotated[
        Editor | None, typer.Argument(help="Without one, how each is set up.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
) -> None:
    """Write an editor's configuration; shows what would change, and asks."""
    from server.setup.command import run

    raise typer.Exit(run(editor.value if editor else None, yes))


@app.command()
def synth(
    out: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write; an existing one is left alone.")],
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="The model's shape: tiny, 0.8b, 2b, 4b, 9b or 27b.", show_default=False)
    ],
    mix: Annotated[
        str,
        typer.Option(
            metavar="MIX",
            help="Its tensor types: f16, q8_0, q4_k_m, or a published 27B file's, "
            "qwen3.6-27b-mtp-q4_k_m or qwen3.5-27b-q4_k_m.",
        ),
    ] = "q4_k_m",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same file.")] = 0,
) -> None:
    """Write a model of a real one's shape and types with random weights, to measure with."""
    from server.synth.command import run

    raise typer.Exit(run(out, preset, mix, seed))


@app.command()
def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH|NAME]",
            help="A GGUF file or a known name; without it $DRAFTLINE_MODEL, else the embedded model.",
            show_default=False,
            callback=_named,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=16, help="Rows that the launch verifies.")] = 5,
    drafts: Annotated[
        int, typer.Option(min=0, max=7, help="Drafts of the MTP head; without any, the host gives them.")
    ] = 4,
    context: Annotated[int, typer.Option(min=0, max=1_048_576, help="Positions before the rows.")] = 4096,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures to FILE too.", show_default=False)
    ] = None,
) -> None:
    """Show where a launch of the decode kernel spends its time, instruction by instruction; needs an NVIDIA GPU."""
    from server.kernel.profile_command import run

    raise typer.Exit(run(model, rows, drafts, context, json_path))
