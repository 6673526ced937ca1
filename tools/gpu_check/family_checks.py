"""Compares what models of each family, and models with adapters, compute on a GPU with what transformers and peft compute. The models are small
and random; their expected values were made where those packages are installed (tests/parity/make_gpu_cases.py)."""

import os
import shutil
import sys
from pathlib import Path

from bench import NO_DEVICE, ROOT, Bench
from checks import NotRun, Outcome, check
from printed import printed

sys.path.insert(0, str(ROOT / "tests" / "parity"))

from families import FAMILIES  # noqa: E402

BF16_FACTOR = 2.0
FP32_LIMIT = 1e-4  # the order of sums differs from the CPU's; TF32 is off
MOST_PROCESSES = 5  # a new process is needed after each case that ends the process
BAR = f"all models; bf16 <= {BF16_FACTOR:g} times as far from fp32 as transformers' own, fp32 <= {FP32_LIMIT:g}"
DTYPES = ("bfloat16", "float32")
GROUPS = {family: f"logits and gradients of small random models of `{family}`, compared with transformers" for family in FAMILIES}
GROUPS |= {"adapters": "logits and gradients of small random models with LoRA, DoRA and pairs of experts, compared with peft",
           "odd_sizes": "logits and gradients of small random models whose sizes are not multiples of 8, compared with transformers"}


def compute(bench: Bench, folders: list[Path], dtype: str, reserve: float) -> None:
    """Writes the values of each case, or an error, into its folder. A case that ends the process has an error, and the cases after it are computed
    by another process. Cases that were not reached in time have neither. `reserve`: seconds of the part that must be left then."""
    # Some container images set this variable, and products of fp32 would then use TF32.
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"}
    for _ in range(MOST_PROCESSES):
        if bench.left < reserve + 5:
            return
        result = bench.run([bench.program("model_values"), dtype, "--gpu", *folders], bench.all_but(reserve, 5), env=environment)
        left = [folder for folder in folders if not any((folder / f"values-{dtype}.{end}").exists() for end in ("safetensors", "error"))]
        if result.code == NO_DEVICE and left == folders:
            raise NotRun(result.said)
        if result.code is None or not left:
            return
        if result.code != 3:  # with code 3, the program has written the error itself
            (left[0] / f"values-{dtype}.error").write_text(f"the process ended with {result.code}: {result.said}")
            left = left[1:]
        if not left:
            return
        folders = left


def is_in(line: dict, dtype: str) -> bool:
    """Returns whether a case has this figure and it is within its bar. NaN is not within the bar."""
    return dtype in line and line[dtype] <= (BF16_FACTOR if dtype == "bfloat16" else FP32_LIMIT)


def fault_of(line: dict) -> str:
    """Returns what is wrong with one case; empty if it has both figures and they are within the bars."""
    name = line["case"].split("/")[1]
    if line["refused"]:
        dtype, error = next(iter(line["refused"].items()))
        return f"{name} refused in {dtype}: {error[:150]}"
    if line["missing"]:
        return f"{name} not reached in time"
    if not is_in(line, "bfloat16"):
        return f"{name}: {line['of']} in bf16 {line['bfloat16']:.2f} times as far"
    return "" if is_in(line, "float32") else f"{name}: {line['parameter']} in fp32 {line['float32']:.1e} away"


def of_all(lines: list[dict]) -> Outcome:
    """The outcome of a family: all its models must be within the bars."""
    faults = [fault for fault in map(fault_of, lines) if fault]
    known = {dtype: [line for line in lines if dtype in line] for dtype in DTYPES}
    if not all(known.values()):
        is_late = all(line["missing"] and not line["refused"] for line in lines)
        return Outcome(why="the part's time was over" if is_late else faults[0], has_failed=not is_late)
    bf16, fp32 = (max(known[dtype], key=lambda line: float("inf") if line[dtype] != line[dtype] else line[dtype]) for dtype in DTYPES)
    count = sum(all(dtype in line for dtype in DTYPES) for line in lines)
    figure = (f"{count} of {len(lines)} models: bf16 at most {bf16['bfloat16']:.2f} times ({bf16['of']}), fp32 at most {fp32['float32']:.1e} "
              f"({fp32['parameter']})")
    return Outcome(figure, not faults, "; ".join(faults))


def of_odd_sizes(lines: list[dict]) -> Outcome:
    """The outcome of odd sizes: a case may be refused, which the figure says; one that is computed must be within the bars."""
    refused = [line for line in lines if line["refused"]]
    late = [line for line in lines if line["missing"] and not line["refused"]]
    others = [line for line in lines if not line["refused"] and not line["missing"]]
    if not refused and not others:
        return Outcome(why="the part's time was over")
    differ = [line for line in others if not all(is_in(line, dtype) for dtype in DTYPES)]
    errors = list(dict.fromkeys(error[:120] for line in refused for error in line["refused"].values()))
    figure = f"{len(others) - len(differ)} agree, {len(differ)} differ, {len(refused)} refused{': ' if errors else ''}{'; '.join(errors[:3])}"
    if late:
        figure += f", {len(late)} not reached in time"
    return Outcome(figure, not differ and not late, "; ".join(fault_of(line) for line in differ + late))


def outcomes_of(lines: list[dict]) -> list[Outcome]:
    """The outcomes of all groups, in their order, by what compare_values.py prints."""
    outcomes = []
    for group in GROUPS:
        its = [line for line in lines if line["case"].split("/")[0] == group]
        if not its:
            outcomes.append(Outcome(why="the cases have none of it; make them again (tests/parity/make_gpu_cases.py)"))
            continue
        outcomes.append((of_odd_sizes if group == "odd_sizes" else of_all)(its))
    return outcomes


@check("families", *((what, "none differs" if group == "odd_sizes" else BAR) for group, what in GROUPS.items()))
def families(bench: Bench) -> list[Outcome]:
    cases = bench.scratch / "family_cases"
    shutil.rmtree(cases, ignore_errors=True)
    shutil.copytree(bench.family_cases(), cases)
    folders = sorted(path.parent for path in cases.glob("*/*/expected.safetensors"))
    for dtype, reserve in zip(DTYPES, (35, 15)):
        compute(bench, folders, dtype, reserve)
    result = bench.run([bench.python(), ROOT / "tests" / "parity" / "compare_values.py", cases], bench.left)
    found = printed(result, "case")
    bench.note_table(("case", "bfloat16", "of", "float32", "parameter"), [line for line in found.lines.values() if not line["refused"] and not line["missing"]])
    if result.code != 0:
        raise RuntimeError(f"compare_values.py: {found.trouble}")
    return outcomes_of(list(found.lines.values()))
