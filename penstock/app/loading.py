"""Load a user's app from `FILE[:name]`."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.app.fingerprints.code import is_local
from penstock.app.hints import hinted
from penstock.core.errors import DeclarationError

CODE_BYTES = 16


@dataclass(frozen=True)
class LoadedApp:
    app: App
    module: ModuleType
    file: Path


def load(target: str) -> LoadedApp:
    """Import an app's file and find its app: the app named after the colon, or else `app`, or else the only app in the
    file."""
    path, _, name = target.partition(":")
    file = Path(path)
    if file.is_dir():
        raise DeclarationError(f"{path!r} is a folder; pass the app's file")
    if not file.is_file():
        raise DeclarationError(f"file {path!r} does not exist")
    module = _import_app_file(file)
    return LoadedApp(_find_app(module, path, name), module, file)


def _find_app(module: ModuleType, path: str, name: str) -> App:
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name and name not in apps:
        raise DeclarationError(f"{path} has no app named {name!r}; it has {', '.join(apps) or 'none'}")
    if not apps:
        raise DeclarationError(f'{path} has no App: add a line like app = App("name")')
    if not name and "app" not in apps and len(apps) != 1:
        raise DeclarationError(f"{path} has {len(apps)} apps; choose one with {path}:NAME")
    return apps[name or ("app" if "app" in apps else next(iter(apps)))]


@dataclass(frozen=True)
class AppText:
    """The source code of an app's file, from which a process that receives this value can create the app, even if the
    file has since changed. Classes defined in the file cannot be sent directly. Modules that the file imports are
    imported in the receiving process."""

    target: str
    text: str

    @classmethod
    def read(cls, target: str) -> AppText:
        return cls(absolute(target), _target_file(target).read_text())

    def app(self) -> App:
        """Return the app, which is created on the first call in this process. Raises whatever the file raises."""
        return _app_from_text(self)


@cache
def _app_from_text(source: AppText) -> App:
    path, _, name = source.target.partition(":")
    module = ModuleType(
        f"{_app_module_name(Path(path))}_{_text_digest(source.text.encode())}"
    )  # a module name that is not in use
    module.__file__ = path
    sys.modules[module.__name__] = module
    _allow_sibling_imports(Path(path))
    exec(compile(source.text, path, "exec"), module.__dict__)
    return _find_app(module, path, name)


def _target_file(target: str) -> Path:
    return Path(target.partition(":")[0])


def _app_module_name(file: Path) -> str:
    return f"penstock_app_{file.stem}".replace("-", "_")


def _allow_sibling_imports(file: Path) -> None:
    """Let the file import modules from its own folder. These take precedence over other modules with the same name, as
    with `python FILE`."""
    folder = str(file.resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]


def absolute(target: str) -> str:
    """Return an app's target with an absolute path, so it is valid in any working directory."""
    path, _, name = target.partition(":")
    return f"{Path(path).resolve()}{f':{name}' if name else ''}"


def code_of(target: str) -> str:
    """Return the digest of the source of an app's file: the same code has the same digest."""
    return _text_digest(_target_file(target).read_bytes())


def _text_digest(text: bytes) -> str:
    return blake2b(text, digest_size=CODE_BYTES).hexdigest()


def local_modules() -> dict[str, str]:
    """Return the files of the user's modules that this process has loaded, by module name."""
    known = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return {
        name: os.path.realpath(file)
        for name, file in sorted(known.items())
        if file and file.endswith(".py") and is_local(file)
    }


def the_handler(app: App, name: str | None) -> Handler:
    """Return the app's handler with that name, or the app's only handler if no name is passed."""
    names = [handler.name for handler in app.handlers]
    if name is None and len(names) != 1:
        raise DeclarationError(f"--handler is required; the handlers are: {', '.join(names) or 'none'}")
    if name is not None and name not in names:
        raise DeclarationError(f"there is no handler {name!r}; the handlers are: {', '.join(names) or 'none'}")
    return next(handler for handler in app.handlers if name in (None, handler.name))


def _import_app_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_app_module_name(file), file)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _allow_sibling_imports(file)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DeclarationError(_import_error_text(file, error)) from error
    return module


def _import_error_text(file: Path, error: Exception) -> str:
    """Return a sentence that includes the failing line of the user's file."""
    if isinstance(error, SyntaxError):
        own = error.filename is None or Path(error.filename).resolve() == file.resolve()
        return f"{file if own else error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f"{file}:{lines[-1] if lines else 1}: {type(error).__name__}: {hinted(error, file)}"
