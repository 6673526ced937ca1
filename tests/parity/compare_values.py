"""Compares values of model_values with those that make_gpu_cases.py expects, and prints a JSON object for each case. Needs only torch.

    compare_values.py CASES

    "case"                   GROUP/NAME
    "float32", "parameter"   the largest distance from the expected values, and where it is: the gradient of this parameter, the logits or the loss
    "bfloat16", "of"         the distance of the logits, or of all gradients together, whichever is larger when divided by that of transformers' own bf16
    "refused"                for each dtype, the error with which our program ended the case; there is no figure then
    "missing"                dtypes without values and without an error
"""

import json
import math
import sys
from pathlib import Path

from distances import distances, read_safetensors, summary


def largest(values: dict) -> tuple[float, str]:
    """Returns the largest value and its name. NaN is larger than any number."""
    return max(((value, name) for name, value in values.items()), key=lambda each: math.inf if math.isnan(each[0]) else each[0])


def compare(folder: Path) -> dict:
    line = {"case": f"{folder.parent.name}/{folder.name}", "refused": {}, "missing": []}
    expected = read_safetensors(folder / "expected.safetensors")
    for dtype in ("float32", "bfloat16"):
        error = folder / f"values-{dtype}.error"
        if error.exists():
            line["refused"][dtype] = " ".join(error.read_text(errors="replace").split())
            continue
        if not (folder / f"values-{dtype}.safetensors").exists():
            line["missing"].append(dtype)
            continue
        values = read_safetensors(folder / f"values-{dtype}.safetensors")
        if values.keys() != expected.keys():
            line["refused"][dtype] = f"other tensors: {sorted(values.keys() ^ expected.keys())[:5]}"
            continue
        found = distances(values, expected)
        if dtype == "float32":
            line["float32"], line["parameter"] = largest(found)
        else:
            theirs, ours = json.loads((folder / "bf16.json").read_text()), summary(found)
            line["bfloat16"], line["of"] = largest({what: ours[what] / theirs[what] for what in theirs})
    return line


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for folder in sorted(path.parent for path in Path(sys.argv[1]).glob("*/*/expected.safetensors")):
        print(json.dumps(compare(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
