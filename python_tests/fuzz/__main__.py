"""``python -m fuzz``, with python_tests and the package on PYTHONPATH; ``make fuzz`` calls it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fuzz.run import Fuzz
from fuzz.ways import FAMILIES, Child, data_of, problem, serve, ways


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", default=",".join(FAMILIES), help="conv,linear,patterns,dual")
    parser.add_argument("--ways", default="", help=f"all, or of {', '.join(ways())}")
    parser.add_argument(
        "--count", type=int, default=0, help="stop at so many distinct problems of the first family"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes that work at a time")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    parser.add_argument("--again", nargs=3, metavar=("FAMILY", "NUMBER", "WAY"), help="one problem once more")
    parser.add_argument(
        "--fresh", action="store_true", help="from the first problem on, whatever was done before"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return 0
    if given.again:
        family, number, way = given.again[0], int(given.again[1]), ways()[given.again[2]]
        p = problem(given.seed, family, number)
        verdict = Child(way).ask(family, p, way.backend, data_of(given.seed, family, number))
        print(json.dumps({"problem": p, **verdict}, indent=1))
        return 1 if verdict["fault"] else 0
    families = given.families.split(",")
    fuzz = Fuzz(given.seed, families, [w for w in given.ways.split(",") if w], given.out, given.count)
    if given.fresh:
        fuzz.state.unlink(missing_ok=True)
        fuzz = Fuzz(given.seed, families, [w for w in given.ways.split(",") if w], given.out, given.count)
    print(f"fuzz: seed {given.seed}, on {', '.join(way.name for way in fuzz.ways)}", flush=True)
    fuzz.run(60 * given.minutes, given.jobs, lambda text: print(text, flush=True))
    print(fuzz.line())
    print(fuzz.table())
    if not sum(fuzz.done.values()):
        print("fuzz: nothing was checked")
        return 1
    return 1 if fuzz.failures else 0


if __name__ == "__main__":
    sys.exit(main())
