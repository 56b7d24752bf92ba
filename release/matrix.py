"""One wheel, installed and tested in a fresh environment for each of several torch versions.

    python release/matrix.py WHEEL                            torch 2.11, 2.13 and the newest that pip offers
    python release/matrix.py WHEEL --torch 2.12.1 newest      these
    python release/matrix.py WHEEL --installed                the torch of this environment, nothing downloaded
    --python PATH      the interpreter, which must be the wheel's
    --tests "…"        what pytest is given besides; default: values, opcheck, compile, export, AOTInductor
    --record FILE      writes the results there as a table

PyPI's torch is a CUDA build of about 5 GB, so an environment is removed before the next one is made. They and pip's
downloads go into a folder of their own within --scratch, which is removed; with --keep the downloads stay in pip-cache
there. Beside a CUDA build of torch the CUDA library is loaded and its registrations are looked at, card or not.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("2.11.0", "2.13.0", "newest")
TESTS = (
    "python_tests/test_ops.py -k 'test_values_against_float64 and float32 or test_opcheck and (linear_relu or nap_pack)"
    " or test_compile or test_inductor or test_export or test_aot or test_torch_func or test_signature_ops'"
)
NEEDED_BY_TESTS = ("pytest", "hypothesis", "mpmath")


class Result(NamedTuple):
    """What one environment gave; ``python`` is "" where the smoke suite failed, ``failed`` where all went well."""

    wheel: str
    torch: str
    python: str
    libraries: str
    tests: str
    seconds: float
    failed: str


def run(*command: str, cwd: Path) -> str:
    """What a program prints, which sees no package but its environment's: pip, too, takes what is on PYTHONPATH for
    installed.

    Raises:
        RuntimeError: it failed; with the last of what it said.
    """
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if result.returncode:
        said = (result.stdout + result.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(command)} failed ({result.returncode}):\n{said}")
    return result.stdout


def newest(python: str) -> str:
    """The newest torch that pip would install for this interpreter."""
    pip = [python, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "-q", "--report=-"]
    told = subprocess.run([*pip, "torch"], capture_output=True, text=True)
    try:
        return str(json.loads(told.stdout)["install"][0]["metadata"]["version"])
    except (ValueError, LookupError):
        sys.exit(f"matrix: pip names no version of torch: {told.stderr.strip()[-500:]}")


def environment(
    folder: Path, cache: Path, python: str, wheel: Path, torch: str | None, links: list[str]
) -> str:
    """The interpreter of a new environment with the wheel and this torch; None takes what is installed here."""
    venv = folder / "venv"
    if torch is None:
        run(sys.executable, "-m", "venv", "--without-pip", str(venv), cwd=folder)
        inside = str(venv / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", inside, "install", "-q"]
        run(*pip, "--no-deps", "--no-index", str(wheel), cwd=folder)
        # The rest comes from here, but for this environment's .pth files, and with them an editable install.
        site = next((venv / "lib").glob("python*/site-packages"))
        (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return inside
    run(python, "-m", "venv", str(venv), cwd=folder)
    inside = str(venv / "bin" / "python")
    options = ["-q", "--no-compile", "--disable-pip-version-check", f"--cache-dir={cache}"]
    options += [f"--find-links={link}" for link in links]
    wanted = [f"torch=={torch}", str(wheel), *NEEDED_BY_TESTS]
    run(inside, "-m", "pip", "install", *options, *wanted, cwd=folder)
    return inside


def try_one(
    scratch: Path, python: str, wheel: Path, torch: str | None, tests: str, links: list[str], cache: Path
) -> Result:
    """Installs, runs the smoke suite and the tests, in a folder within ``scratch`` that is removed."""
    began = time.monotonic()
    facts: dict[str, object] = {
        "torch": torch or importlib.metadata.version("torch"),
        "python": "",
        "libraries": {},
    }
    counted, failed = "", ""
    folder = Path(tempfile.mkdtemp(prefix="environment-", dir=scratch)).resolve()
    try:
        inside = environment(folder, cache, python, wheel, torch, links)
        shutil.copytree(
            ROOT / "python_tests", folder / "python_tests", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(ROOT / "release/smoke.py", folder)
        facts = json.loads(run(inside, "-W", "ignore", "smoke.py", cwd=folder).splitlines()[-1])
        if not Path(str(facts["folder"])).is_relative_to(folder):
            raise RuntimeError(f"the package came from {facts['folder']}, not from the wheel")
        if facts["cuda"] and "_C_cuda.so" in {p.name for p in Path(str(facts["folder"])).glob("*.so")}:
            run(inside, "python_tests/check_cuda_load.py", cwd=folder)
        if tests:
            command = f"exec {inside} -W ignore -m pytest -q -p no:cacheprovider {tests}"
            told = run("sh", "-c", command, cwd=folder)
            counted = re.sub(r" in .*", "", told.strip().splitlines()[-1]).strip("= ")
    except RuntimeError as error:
        failed = str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    loaded = ", ".join(name for name, is_loaded in dict(facts["libraries"]).items() if is_loaded)  # type: ignore[call-overload]
    build = facts.get("cuda") and f", CUDA {facts['cuda']}"
    name = f"{facts['torch']}{build or ''}"
    return Result(wheel.name, name, str(facts["python"]), loaded, counted, time.monotonic() - began, failed)


def table(results: list[Result], tests: str) -> str:
    ran = f"suite and `{tests}` were run.\n" if tests else "suite alone was run.\n"
    lines = [
        "# A wheel on several versions of torch\n",
        "Written by `python release/matrix.py WHEEL… --record`: each row is a fresh environment in which the smoke\n"
        + ran,
        "| wheel | torch | Python | libraries loaded | smoke | tests |\n| --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        smoke = "passed" if r.python else "failed"
        counted = r.tests or ("failed" if r.failed and r.python else "")
        lines.append(f"| `{r.wheel}` | {r.torch} | {r.python} | {r.libraries} | {smoke} | {counted} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    parser.add_argument("--torch", nargs="+", default=list(VERSIONS), metavar="VERSION")
    parser.add_argument("--installed", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tests", default=TESTS)
    parser.add_argument("--find-links", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--scratch", type=Path, help="default: the system's temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the downloads in --scratch/pip-cache")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    missing = [str(wheel) for wheel in args.wheels if not wheel.is_file()]
    if missing:
        parser.error(f"expected the files of wheels, got {', '.join(missing)}")
    if args.keep and not args.scratch:
        parser.error("expected --scratch with --keep: the folder that keeps the downloads")
    if args.scratch:
        args.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="matrix-", dir=args.scratch) as temporary:
        folder = Path(temporary)
        cache = (args.scratch if args.keep else folder).resolve() / "pip-cache"
        results = []
        for wheel in args.wheels:
            for wanted in [None] if args.installed else args.torch:
                torch = newest(args.python) if wanted == "newest" else wanted
                result = try_one(
                    folder, args.python, wheel.resolve(), torch, args.tests, args.find_links, cache
                )
                results.append(result)
                verdict = "FAILED" if result.failed else "passed"
                print(f"{result.wheel} on torch {result.torch}, Python {result.python}: {verdict}, ", end="")
                print(
                    f"loaded {result.libraries or 'nothing'}; {result.tests or 'no tests'}; {result.seconds:.0f} s"
                )
                print(result.failed, end="\n" if result.failed else "", flush=True)
    if args.record:
        staged = args.record.with_name(f".{args.record.name}")
        staged.write_text(table(results, args.tests))
        os.replace(staged, args.record)
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
