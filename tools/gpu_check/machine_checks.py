"""Checks the machine, its driver and first launches of kernels, before other checks depend on them."""

import json
import platform
from pathlib import Path

from bench import NO_DEVICE, Bench
from checks import A_FIGURE, NotRun, Outcome, check
from printed import printed


def bar_bytes(pci_address: str, root: Path = Path("/")) -> int:
    """Returns the size of the largest window through which the processor accesses a card's memory;
    0 if the kernel does not report it."""
    # NVML prints eight digits of the PCI domain, the kernel four: 00000000:01:00.0.
    file = root / "sys/bus/pci/devices" / pci_address.lower()[-12:] / "resource"
    try:
        windows = [[int(word, 16) for word in line.split()[:2]] for line in file.read_text().splitlines()]
    except (OSError, ValueError):
        return 0
    return max((end - begin + 1 for begin, end in windows if end > begin), default=0)


def attributes_text(report: dict, bar: int) -> str:
    """Describes the first GPU that was measured, from the report of `rp-launch doctor --json`."""
    measured = report["bandwidths"][0]
    gpu = next(gpu for gpu in report["gpus"] if gpu["uuid"] == measured["uuid"])
    figures = measured["alone"]
    answers = ", ".join(f"{name} {'yes' if figures[key] else 'no'}" for key, name in (
        ("word_operations", "64-bit stream memory operations"), ("read_only_registration", "read-only registration"),
        ("unified_addressing", "unified addressing")))
    window = f"{bar / 2**30:.2f} GiB" if bar else "?"
    return (f"sm {gpu['compute_capability']}; {answers}; {figures['copy_engines']} copy engines; BAR {window}; PCIe {gpu['pcie_now']['generation']}.0 "
            f"x{gpu['pcie_now']['lanes']} (at most {gpu['pcie_at_most']['generation']}.0 x{gpu['pcie_at_most']['lanes']}); "
            f"driver {report['driver']}, CUDA {report['cuda']}; kernel {platform.release()}")


@check("attributes", ("what the GPU, its driver and the kernel are: compute capability, stream memory operations, registration, copy engines, BAR",
                      "64-bit stream memory operations, unified addressing"),
       ("what `rp-launch doctor` finds wrong with the machine", A_FIGURE))
def attributes(bench: Bench) -> list[Outcome]:
    result = bench.run([bench.program("rp-launch"), "doctor", "--gpus", "0,", "--json"], 20)
    if result.code is None:
        raise NotRun(f"rp-launch doctor did not end within {result.seconds:.0f} s")
    if result.code == NO_DEVICE:
        raise NotRun(result.said)
    if result.code != 0:
        raise RuntimeError(f"rp-launch doctor ended with {result.code}: {result.said}")
    report = json.loads(result.out)
    problems = [f"{each['about']}: {each['text']}" for each in report["advice"] if each["problem"]]
    wrong = Outcome("; ".join(problems)[:400] or "nothing")
    measured = report["bandwidths"][0] if report["bandwidths"] else {"alone": None, "failure": report["unmeasured"]}
    if not measured["alone"]:
        return [Outcome(why=f"rp-probe: {measured['failure']}", has_failed=True), wrong]
    figures = measured["alone"]
    pci_address = next(gpu["pci_address"] for gpu in report["gpus"] if gpu["uuid"] == measured["uuid"])
    return [Outcome(attributes_text(report, bar_bytes(pci_address)), figures["word_operations"] and figures["unified_addressing"]), wrong]


def launches_outcomes(lines: list[dict]) -> list[Outcome]:
    """Reports the longest first launch and the sum of all, the first launches that another stream
    delayed, and those that it delayed again at their second launch, from the output of
    gpu_first_launches."""
    outcomes = []
    for is_beside in (False, True):
        its = [line for line in lines if line["is_beside"] == is_beside]
        if not its:
            outcomes.append(Outcome(why="no line of it", has_failed=True))
            continue
        longest = max(its, key=lambda line: line["first_ms"])
        again = max(line["again_ms"] for line in its)
        held_up = [line["launch"] for line in its if line["was_held_up"]]
        figure = (f"{len(its)} launches, {sum(line['first_ms'] for line in its):.0f} ms, the longest {longest['first_ms']:.1f} ms "
                  f"({longest['launch']}); again at most {again:.2f} ms")
        if is_beside:
            figure += f"; held up: {len(held_up)}"
        outcomes.append(Outcome(figure))
    while_shut = [line for line in lines if line["is_beside"]]
    held_up = [line["launch"] for line in while_shut if line["was_held_up_again"]]
    if not while_shut:
        return [*outcomes, Outcome(why="no line of it", has_failed=True)]
    return [*outcomes, Outcome(f"{len(while_shut)} launches, held up: {', '.join(held_up) or 'none'}", not held_up)]


# Runs before any training. The driver waits for all streams before it loads a kernel. Workers
# depend on it not doing so for a kernel that is already loaded (docs/design/warm-up.md).
@check("launches", ("first launches of our kernels, of a cuBLAS handle and product: from the call to the end", A_FIGURE),
       ("the same while another stream waits for a word, under a watchdog", A_FIGURE),
       ("what was launched before, while another stream waits for a word", "none is held up"))
def first_launches(bench: Bench) -> list[Outcome]:
    result = bench.run([bench.program("gpu_first_launches")], 45)
    found = printed(result, "launch", "is_beside")
    outcomes = launches_outcomes(list(found.lines.values()))
    bench.note_table(("launch", "is_beside", "first_ms", "again_ms", "was_held_up", "was_held_up_again"), found.lines.values())
    if result.code == 0:
        return outcomes
    # Launches before a failure are known, but they are not all that had to be shown.
    return [Outcome(each.figure, False, found.trouble) if each.figure else Outcome(why=found.trouble, has_failed=found.has_failed)
            for each in outcomes]
