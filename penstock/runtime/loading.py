"""Loading a user's app from `FILE[:name]`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

from penstock.app import App
from penstock.declared import Handler
from penstock.errors import DeclarationError
from penstock.runtime.hints import hinted

CODE_BYTES = 16


@dataclass(frozen=True)
class Loaded:
    app: App
    module: ModuleType
    file: Path


def load(target: str) -> Loaded:
    """Import the file and find its app: the one named after the colon, else `app`, else the only one there is."""
    path, _, name = target.partition(":")
    file = Path(path)
    if file.is_dir():
        raise DeclarationError(f"{path!r} is a folder; give the app's file")
    if not file.is_file():
        raise DeclarationError(f"there is no file {path!r}")
    module = _import(file)
    return Loaded(_find(module, path, name), module, file)


def _find(module: ModuleType, path: str, name: str) -> App:
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name and name not in apps:
        raise DeclarationError(f"{path} has no app named {name!r}; it has {', '.join(apps) or 'none'}")
    if not apps:
        raise DeclarationError(f'{path} has no App: it should have a line like app = App("name")')
    if not name and "app" not in apps and len(apps) != 1:
        raise DeclarationError(f"{path} has {len(apps)} apps; give one as {path}:NAME")
    return apps[name or ("app" if "app" in apps else next(iter(apps)))]


@dataclass(frozen=True)
class AppText:
    """The text of an app's file. It makes the app in a process that is sent this value, whatever becomes of the file:
    classes of the file cannot be sent. What the file imports is imported there."""

    target: str
    text: str

    @classmethod
    def read(cls, target: str) -> AppText:
        return cls(absolute(target), _file(target).read_text())

    def app(self) -> App:
        """The app, made at the first call in this process. Raises whatever the file raises."""
        return _made_of(self)


@cache
def _made_of(source: AppText) -> App:
    path, _, name = source.target.partition(":")
    module = ModuleType(f"{_module_name(Path(path))}_{_mark(source.text.encode())}")  # not one that is there already
    module.__file__ = path
    sys.modules[module.__name__] = module
    _allow_neighbours(Path(path))
    exec(compile(source.text, path, "exec"), module.__dict__)
    return _find(module, path, name)


def _file(target: str) -> Path:
    return Path(target.partition(":")[0])


def _module_name(file: Path) -> str:
    return f"penstock_app_{file.stem}".replace("-", "_")


def _allow_neighbours(file: Path) -> None:
    """Let the file import what lies beside it, before anything else of the same name, as with `python FILE`."""
    folder = str(file.resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path[:] = [folder, *(each for each in sys.path if each != folder)]


def absolute(target: str) -> str:
    """The same target, from whatever folder."""
    path, _, name = target.partition(":")
    return f"{Path(path).resolve()}{f':{name}' if name else ''}"


def code_of(target: str) -> str:
    """A mark of the text of an app's file: the same code has the same."""
    return _mark(_file(target).read_bytes())


def _mark(text: bytes) -> str:
    return blake2b(text, digest_size=CODE_BYTES).hexdigest()


def the_handler(app: App, name: str | None) -> Handler:
    """The handler of that name, or the only one."""
    names = [each.name for each in app.handlers]
    if name is None and len(names) != 1:
        raise DeclarationError(f"give --handler: there are {', '.join(names) or 'none'}")
    if name is not None and name not in names:
        raise DeclarationError(f"there is no handler {name!r}; there are {', '.join(names) or 'none'}")
    return next(each for each in app.handlers if name in (None, each.name))


def _import(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_module_name(file), file)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _allow_neighbours(file)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DeclarationError(_where(file, error)) from error
    return module


def _where(file: Path, error: Exception) -> str:
    """One sentence with the line of the user's file that failed."""
    if isinstance(error, SyntaxError):
        own = error.filename is None or Path(error.filename).resolve() == file.resolve()
        return f"{file if own else error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f"{file}:{lines[-1] if lines else 1}: {type(error).__name__}: {hinted(error, file)}"
