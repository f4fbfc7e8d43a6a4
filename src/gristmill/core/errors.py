"""The exceptions that Gristmill raises.

    GristmillError
    ├── PlanError                 the pipeline cannot work as written; raised before anything runs
    │   ├── InputError            a path is missing, matches no file or has another format
    │   ├── ColumnError           a stage needs a column or a task type that nothing upstream produces
    │   └── ResourceError         a stage asks for more than there is
    ├── RecipeError               a recipe file is not valid
    ├── MissingDependencyError    an optional library is not installed (also an ImportError)
    ├── BadRecordError            a record of an input file cannot be read
    ├── ContractError             a stage broke the rules, for example returned something that is no task
    ├── OutputError               a file cannot be written: no permission, no space (also an OSError)
    ├── DownloadError             something cannot be fetched from the web (also an OSError)
    ├── EndpointError             an endpoint of a model does not answer, or refuses every request (also an OSError)
    ├── BudgetReachedError        what a run may spend on a model is spent
    ├── LostTaskError             the data of a task was lost with its node
    ├── AccountingError           rows were lost or doubled between two stages; a defect
    └── StageError                a stage failed on a task; names the stage, the task and its files
        ├── AnswerCountError      `process_batch` returned another number of answers than it got tasks
        ├── WorkerLostError       the worker process ended: killed, crashed or out of memory
        ├── TaskTimeoutError      the stage ran past its `timeout_s`
        └── ErrorBudgetError      more records failed than `max_errors` allows

Every message names what failed, where, and how to fix it.
"""

from __future__ import annotations

import errno
import importlib
from typing import TYPE_CHECKING, Any

from gristmill.core.secret_values import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


MAX_REASON_CHARS, MAX_DETAILS_CHARS = 10_000, 30_000
"""How much of an error is kept: its message may be a whole document."""


class GristmillError(Exception):
    """Base of all errors that Gristmill raises on purpose. No secret that is known to be one is in their messages."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*(hide_secrets(item) if type(item) is str else item for item in args))


class PlanError(GristmillError):
    """The pipeline cannot work as written."""


class InputError(PlanError):
    """An input path is missing, matches nothing or is of another format."""


class ColumnError(PlanError):
    """A stage needs a column or a type of task that nothing before it produces."""


class ResourceError(PlanError):
    """A stage asks for more than the machine or cluster has."""


class RecipeError(GristmillError):
    """A recipe file is not valid."""


class BadRecordError(GristmillError):
    """A record of an input file cannot be read."""


class ContractError(GristmillError):
    """A stage broke the rules of `ProcessingStage`."""


class MissingDependencyError(GristmillError, ImportError):
    """An optional library is not installed."""


class StageError(GristmillError):
    """A stage failed on a task. `details` holds the traceback of the worker."""

    def __init__(
        self, stage: str, task_id: str, files: Sequence[str], reason: str, details: str = "", position: int = 0
    ) -> None:
        self.stage, self.task_id, self.files = stage, task_id, tuple(files)
        self.reason, self.position = hide_secrets(cut_middle(reason, MAX_REASON_CHARS)), position
        self.details = hide_secrets(cut_middle(details, MAX_DETAILS_CHARS))
        self.hopeless = False
        """Whether a retry would fail again, so that none is made."""
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f" from {shorten(self.files)}" if self.files else ""
        text = f"stage {self.stage!r} failed on task {self.task_id}{where}: {self.reason}"
        return f"{text}\n\n{self.details}" if self.details else text

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.stage, self.task_id, self.files, self.reason, self.details, self.position)
        return type(self), fields, {"hopeless": self.hopeless}


class AnswerCountError(StageError):
    """`process_batch` returned another number of answers than it got tasks. No task is at fault, so none is retried."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hopeless = True


class WorkerLostError(StageError):
    """The worker process ended while it ran the task."""


class TaskTimeoutError(StageError):
    """The stage ran past its time limit and its worker was killed."""


class ErrorBudgetError(StageError):
    """More records failed than `max_errors` allows. Shows the first, and counts all."""


class OutputError(GristmillError, OSError):
    """A file cannot be written. This may be temporary, so the stage is retried."""

    def __init__(self, path: str, reason: str, number: int | None = None, stage: str = "") -> None:
        who = f"stage {stage!r} cannot write" if stage else "cannot write"
        super().__init__(f"{who}: {reason}: {path}. {_WAYS_OUT.get(number or 0, _ELSEWHERE)}")
        self.path, self.reason, self.errno = path, reason, number


_ELSEWHERE = "Choose another directory"
_ROOM = "Make room, or choose another directory; started again with its run_dir, a run goes on where it stopped"
_RIGHTS = "Give this user the right to write there, or choose another directory"
_IN_THE_WAY = "A file is where a directory should be: move it, or choose another directory"
_WAYS_OUT = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "Raise the limit for files (ulimit -f), or write smaller ones",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.ENOENT: "It was removed meanwhile, or cannot be there: choose another directory",
}


def cannot_write(path: str, error: OSError, stage: str = "") -> OutputError:
    """An OutputError with the operating system's message, the file and how to fix it."""
    if isinstance(error, OutputError):
        return OutputError(error.path, error.reason, error.errno, stage)
    name = error.filename if isinstance(error.filename, str) else path
    return OutputError(name, error.strerror or str(error), error.errno, stage)


def explain_storage_error(error: BaseException) -> str:
    """What a file system said, in one line, and the way out where it is known. Each library raises its own types."""
    error = _telling(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
        return (
            "there are no credentials for it. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a "
            "public bucket, storage_options: {anon: true}"
        )
    said = " ".join(describe_error(error).split())
    said = said if len(said) <= 300 else f"{said[:299]}…"
    if kinds & {"ReadTimeoutError", "AioReadTimeoutError", "ServerTimeoutError"}:
        return f"its server accepts connections but does not answer ({said}). Check the address (for S3, endpoint_url)"
    if kinds & {"HTTPClientError", "ClientConnectionError", "ConnectionError", "TimeoutError", "gaierror"}:
        return f"its server cannot be reached ({said}). Check the address (for S3, endpoint_url) and the network"
    if "PermissionError" in kinds:
        return f"access is denied ({said}). Check the credentials and the rights of their user"
    return said


def _telling(error: BaseException) -> BaseException:
    """The error behind one that says nothing."""
    if isinstance(error, IndexError) and error.__context__:  # s3fs looks for a number in an error that has none
        error = error.__context__
    silent = type(error).__name__ == "FSTimeoutError"
    return error.__cause__ if silent and error.__cause__ else error


def is_system_error(error: BaseException) -> bool:
    """Whether it is an error of the operating system, or one like it: those of libraries, which may be OSErrors as
    well, do not say which file they are about."""
    return isinstance(error, OSError) and type(error).__module__ == "builtins"


class DownloadError(GristmillError, OSError):
    """Something cannot be fetched. `transient`: it may work later, and was tried several times already."""

    def __init__(self, url: str, reason: str, status: int | None = None, transient: bool = False) -> None:
        super().__init__(f"{printable(url, 500)}: {reason}")
        self.url, self.reason, self.status, self.transient = url, reason, status, transient

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.reason, self.status, self.transient)


class EndpointError(GristmillError, OSError):
    """An endpoint of a model cannot be reached, or refuses every request: no other one would succeed."""


class BudgetReachedError(GristmillError):
    """What a run may spend on a model is spent. What was answered is kept: a run with a larger budget goes on."""


class LostTaskError(GristmillError):
    """The data of a task was lost with its node."""


class AccountingError(GristmillError):
    """Rows were lost or doubled between two stages: a bug, never caused by the data."""


def shorten(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(printable, names[:most])) + more


def printable(text: object, most: int | None = None) -> str:
    """Text in one line without control characters, `most` characters long: data must not steer the terminal."""
    shown = str(text)
    short = shown if most is None or len(shown) <= most else shown[: most - 1] + "…"
    return short if short.isprintable() else "".join(letter if letter.isprintable() else " " for letter in short)


def cut_middle(text: str, most: int) -> str:
    """The beginning and the end of a text, if it has more than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... ({len(text) - 2 * half:,} characters left out) ... {text[-half:]}"


def describe_error(error: BaseException) -> str:
    """The error's type and message, even if its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        return f"{type(error).__name__} (which cannot be printed)"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" Did you mean 'text'?"`, or nothing when no known word is near."""
    import difflib

    names = list(known)
    exact = [name for name in names if name.lower() == word.lower()]
    near = exact or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs {module!r}, which is not installed: pip install 'gristmill[{extra}]'"
        ) from error
