"""Create plans of views in a separate process, so that the calling process keeps no JVM.

python -m penstock.runtime.plans FILE[:APP] DATA VIEW...
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from penstock.app.fingerprints.stored import PlanPrint
from penstock.app.fingerprints.verdicts import Verdict, VerdictKind
from penstock.app.loading import load
from penstock.core.errors import ViewError
from penstock.core.settings import from_environment
from penstock.runtime.comparison import Comparison, Plans
from penstock.runtime.events import stored_origins
from penstock.runtime.opening import open_storage

PLANS_S_MAX = 300.0
_Plans = dict[str, PlanPrint | str]


def decided(
    comparison: Comparison,
    say: Callable[[str], None],
    plans: Callable[[Comparison, Sequence[str]], Plans] | None = None,
) -> list[Verdict]:
    """Return all verdicts on an app. If the source of some views does not decide the verdict, print a message and
    create the missing plans with `plans`, which by default starts Spark briefly."""
    verdicts = comparison.verdicts()
    undecided = [verdict.name for verdict in verdicts if verdict.kind is VerdictKind.undecided]
    if not undecided:
        return verdicts
    say(f"using Spark to compare {', '.join(undecided)}, which takes about ten seconds")
    return comparison.verdicts((plans or plans_beside)(comparison, undecided))


def plans_beside(comparison: Comparison, views: Sequence[str]) -> Plans:
    """Return the plans of these views, from a separate process. Blocks while Spark starts."""
    command = [
        sys.executable,
        "-m",
        "penstock.runtime.plans",
        comparison.target,
        comparison.storage.location,
        *views,
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PLANS_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise ViewError(f"the plans of {', '.join(views)} were not ready within {PLANS_S_MAX:.0f} s") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ViewError(f"cannot create the plans for {', '.join(views)}: {' '.join(last) or done.returncode}")
    return msgspec.json.decode(done.stdout, type=_Plans)


def main(arguments: Sequence[str]) -> int:
    from penstock.analyze.plans import view_plans
    from penstock.analyze.session import carry

    target, root, *views = arguments
    loaded = load(target)
    carry(loaded.module, loaded.file)
    origins = stored_origins(loaded.app, open_storage(root))
    sys.stdout.buffer.write(msgspec.json.encode(view_plans(loaded.app, views, from_environment(), origins)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
