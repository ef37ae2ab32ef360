"""Entry point of ``antiphon``: finds the verb, and turns every failure into one line.

A traceback tells a user of a command nothing to do, so errors of ours become their text on
standard error. Exit code 2 is for bad arguments, 1 for a failure, 130 for Ctrl-C. A setting, a name
or a directory that makes no sense is a bad argument, wherever that is noticed: a script tells a
mistake of its own from something that it is to report, such as a protocol that got slower.

The large verbs bring their own Typer application and are imported only when they are called:
``antiphon doctor`` must not need what ``antiphon bench`` needs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from antiphon._version import __version__
from antiphon.cli.doctor import doctor
from antiphon.errors import AntiphonError, ConfigError, FilterError

__all__ = ["app", "main"]

app = typer.Typer(
    name="antiphon",
    help="Messaging between Python processes. Each verb has its own --help, with an example.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor)

# Everything after such a verb, --help included, belongs to the application that it loads.
_PASS_ON: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"antiphon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Messaging between Python processes. Each verb has its own --help, with an example."""


@app.command(**_PASS_ON)
def demo(context: typer.Context) -> None:
    """Run the demonstration: a few lines of code, then the same lines live."""
    _hand_over("demo", context.args)


@app.command(**_PASS_ON)
def bench(context: typer.Context) -> None:
    """Measure ours beside others in one run: antiphon bench node, request, topic or group."""
    _hand_over("bench", context.args or ["--help"])


@app.command(**_PASS_ON)
def pub(context: typer.Context) -> None:
    """Publish on a topic: antiphon pub plant/7/temp 31.5, or lines of standard input."""
    _hand_over("pub", context.args)


@app.command(**_PASS_ON)
def sub(context: typer.Context) -> None:
    """Print the events of topics: antiphon sub 'plant/*/temp'."""
    _hand_over("sub", context.args)


@app.command(**_PASS_ON)
def group(context: typer.Context) -> None:
    """Be a member of a group: antiphon group lounge --as anna."""
    _hand_over("group", context.args)


@app.command(**_PASS_ON)
def broker(context: typer.Context) -> None:
    """Pass events on between buses: antiphon broker --listen tcp://127.0.0.1:7000."""
    _hand_over("broker", context.args)


@app.command(**_PASS_ON)
def lab(context: typer.Context) -> None:
    """Measure messaging under stress, by a plan: antiphon lab plans, lab run, lab resume."""
    _hand_over("lab", context.args or ["--help"])


@app.command(**_PASS_ON)
def pipeline(context: typer.Context) -> None:
    """Make tables and a report of campaigns: antiphon pipeline run stability-1 --out tables."""
    _hand_over("pipeline", context.args or ["--help"])


def _hand_over(verb: str, arguments: Sequence[str]) -> None:
    module = _load(verb)
    inner = getattr(module, "app", None)
    if inner is None:
        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        inner.command(verb)(getattr(module, verb))
    code = inner(args=list(arguments), prog_name=f"antiphon {verb}", standalone_mode=False)
    if isinstance(code, int) and code:
        raise typer.Exit(code)


def _load(verb: str) -> Any:
    name = f"antiphon.cli.{verb}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise AntiphonError(f"this installation has no 'antiphon {verb}'") from None
        extra = "spark" if verb == "pipeline" else "lab"
        raise AntiphonError(
            f"'antiphon {verb}' needs the module {error.name!r}; "
            f"install it with: pip install 'antiphon[{extra}]'"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the console script passes it to the shell."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given or ["--help"], prog_name="antiphon", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # `antiphon doctor | head`: the reader has what it wanted. Python would complain about
        # the flush at exit, so standard output is pointed elsewhere first.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ConfigError, FilterError) as error:
        # A plan may have several faults, each with its own line in the file.
        faults = getattr(error, "faults", ()) or (error,)
        return max(_complain(str(fault), 2) for fault in faults)
    except (AntiphonError, OSError) as error:
        return _complain(str(error), 1)
    except Exception as error:
        # Typer brings its usage errors from click or from a copy of it, depending on its version.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        verb = getattr(context, "command_path", "antiphon")
        said = error.format_message().rstrip(".")
        return _complain(f"{said}; see '{verb} --help'", getattr(error, "exit_code", 2))
    return code if isinstance(code, int) else 0


def _complain(text: str, code: int) -> int:
    print("antiphon: " + " ".join(text.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
