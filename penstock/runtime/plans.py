"""Plans of views made by a process of their own, so that the one that asks for them keeps no JVM.

python -m penstock.runtime.plans FILE[:APP] DATA VIEW...
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.errors import ViewError
from penstock.fingerprints.stored import PlanPrint
from penstock.fingerprints.verdicts import Kind, Verdict
from penstock.runtime.comparison import Comparison, Plans
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import stored_origins
from penstock.runtime.loading import load
from penstock.settings import from_environment

PLANS_S_MAX = 300.0
_Plans = dict[str, PlanPrint | str]


def decided(
    comparison: Comparison,
    say: Callable[[str], None],
    plans: Callable[[Comparison, Sequence[str]], Plans] | None = None,
) -> list[Verdict]:
    """All verdicts. If the texts of views do not tell enough, Spark is started for a while, which is said before; or
    `plans` makes the plans."""
    verdicts = comparison.verdicts()
    undecided = [each.name for each in verdicts if each.kind is Kind.undecided]
    if not undecided:
        return verdicts
    say(f"comparing {', '.join(undecided)} with Spark, about ten seconds")
    return comparison.verdicts((plans or plans_beside)(comparison, undecided))


def plans_beside(comparison: Comparison, views: Sequence[str]) -> Plans:
    """The plans of these views, from another process. Blocks for the time of a Spark start."""
    command = [
        sys.executable,
        "-m",
        "penstock.runtime.plans",
        comparison.target,
        str(comparison.directory.root),
        *views,
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PLANS_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise ViewError(f"the plans of {', '.join(views)} were not made in {PLANS_S_MAX:.0f} s") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ViewError(f"the plans of {', '.join(views)} could not be made: {' '.join(last) or done.returncode}")
    return msgspec.json.decode(done.stdout, type=_Plans)


def main(arguments: Sequence[str]) -> int:
    from penstock.analyze.plans import view_plans
    from penstock.analyze.session import carry

    target, root, *views = arguments
    loaded = load(target)
    carry(loaded.module, loaded.file)
    origins = stored_origins(loaded.app, DataDirectory(Path(root)))
    sys.stdout.buffer.write(msgspec.json.encode(view_plans(loaded.app, views, from_environment(), origins)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
