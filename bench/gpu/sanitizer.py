"""compute-sanitizer over a few samples of each op: memcheck, racecheck, initcheck, one row each."""

from __future__ import annotations

import re

from gpu import process
from gpu.process import Output, Part, Row, program, read_rows, settle

CHECKS = ("memcheck", "racecheck", "initcheck")
OURS = "kns=N2zb"  # every kernel of ours is in namespace zb, which is in its mangled name
PLACE = re.compile(r"=+ .*\bat (.*\+)?0x[0-9a-f]+")
# Without torch's own memory cache each tensor is an allocation, and an overrun has nowhere to hide.
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def sanitizer(tool: str, limit: float) -> Part:
    """A row for each check; a tool that is not there or refuses the device is said, and is no failure."""
    part = Part("sanitizer", "passed", "")
    if not tool:
        part.rows = [Row(check, "missing", "compute-sanitizer was not found") for check in CHECKS]
    for number, check in enumerate(CHECKS if tool else ()):
        share = (limit - part.seconds) / (len(CHECKS) - number)
        output = process.run(command(tool, check, share), share, ENVIRONMENT)
        part.seconds += output.seconds
        part.rows.append(judge(check, output))
        part.tail = "\n".join([*part.tail.splitlines(), f"--- {check}", *output.lines][-60:])
        if part.rows[-1].state == "refused":  # it will refuse the others too, and each try costs seconds
            rest = CHECKS[number + 1 :]
            part.rows += [Row(each, "refused", f"not tried after {check}") for each in rest]
            break
    settle(part)
    return part


def command(tool: str, check: str, seconds: float) -> list[str]:
    """The tool over the program. initcheck must see who else writes, so it alone watches torch's kernels too."""
    line = [tool, "--tool", check]
    if check == "memcheck":
        line += ["--report-api-errors", "no"]  # torch asks the driver what it may not know
    if check != "initcheck":
        line += ["--kernel-name", OURS]
    return [*line, *program("samples", "--few", "--seconds", f"{seconds * 0.7:.0f}")]


def judge(check: str, output: Output) -> Row:
    """A row from what the tool and the program under it said.

    The program's first row is torch's alone. Where not even that was reached, the tool did not run the program:
    it refuses this device or driver, or the sandbox forbids it.
    """
    rows, begun, ended = read_rows(output)
    ours, elsewhere = count_faults(output.lines)
    data = {"faults": ours, "faults_elsewhere": elsewhere}
    if ours:
        first = next(line for line in output.lines if _is_ours(line))
        return Row(check, "failed", f"{ours} places in our kernels, first {first.strip('= ')[:160]}", data)
    if not any(row.name == "ready" and row.state == "passed" for row in rows):
        said = next((line for line in output.lines if line.startswith("=========") and "rror" in line), "")
        return Row(check, "refused", f"{output.ending}: {said.strip('= ') or output.last_line}"[:240], data)
    bad = [row for row in rows if row.state in ("failed", "timed out")]
    if bad:
        return Row(check, "failed", f"{bad[0].name}: {bad[0].note}"[:240], data)
    done = [row for row in rows if row.state == "passed" and row.name != "ready"]
    if not ended and output.status is not None:
        at = begun["name"] if begun else "its end"
        return Row(check, "failed", f"{output.ending} at {at}: {output.last_line}"[:240], data)
    if not done:
        return Row(check, "not reached", "the time was over before the first op's samples were done", data)
    left = "" if ended else ", then the time was over"
    return Row(check, "passed", f"no fault in {len(done)} ops{left}", data)


def count_faults(lines: list[str]) -> tuple[int, int]:
    """(places of faults in our kernels, those elsewhere), from lines such as ``=== at zb::nap::pack(...)+0x40``.

    A race has two places. Frames of the host are no place: a fault in a kernel of torch's may have been launched
    by us.
    """
    places = [line for line in lines if PLACE.match(line) and "Host Frame" not in line]
    ours = sum(_is_ours(line) for line in places)
    return ours, len(places) - ours


def _is_ours(line: str) -> bool:
    return bool(PLACE.match(line)) and ("zb::" in line or "_ZN2zb" in line)
